"""Memory that other processes of the job may read and write, and its transfer."""

from monarch._core._native import LoopWatcher, PendingCall
from monarch._core._native.bulk import BufferMemory, Bulk, BulkFailed, Handle, Message, Plan, SharedMemory
from monarch._core.extension.bulk import Notify, complete, done, failed, future_of, notify, open_bulk, pending_call

__all__ = [
    "BufferMemory",
    "Bulk",
    "BulkFailed",
    "Handle",
    "LoopWatcher",
    "Message",
    "Notify",
    "PendingCall",
    "Plan",
    "SharedMemory",
    "complete",
    "done",
    "failed",
    "future_of",
    "notify",
    "open_bulk",
    "pending_call",
]
