"""Messages between processes of one machine: a wheel's service and its helper processes, or a helper process and its clients.

`Channel` has blocking and nonblocking calls, `AsyncChannel` requests and answers on an event loop; `listen` and `connect` are for sockets
in a folder that only this user can enter. They are for processes of one user on one machine; actors and ports are for everything else.
"""

from __future__ import annotations

from monarch._core.config.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.channel.async_channel import AsyncChannel as AsyncChannel
    from monarch._core.channel.async_channel import PeerGone as PeerGone
    from monarch._core.channel.channel import CHANNEL_FILE as CHANNEL_FILE
    from monarch._core.channel.channel import Channel as Channel
    from monarch._core.channel.channel import ChannelEnded as ChannelEnded
    from monarch._core.channel.channel import ChannelError as ChannelError
    from monarch._core.channel.channel import Head as Head
    from monarch._core.channel.channel import Message as Message
    from monarch._core.channel.private_folder import connect as connect
    from monarch._core.channel.private_folder import listen as listen
    from monarch._core.channel.private_folder import make_private as make_private
    from monarch._core.channel.private_folder import open_private as open_private

# Clients of keepers load no event loop.
_HOMES = {
    "channel.async_channel": ("AsyncChannel", "PeerGone"),
    "channel.channel": ("CHANNEL_FILE", "Channel", "ChannelEnded", "ChannelError", "Head", "Message"),
    "channel.private_folder": ("connect", "listen", "make_private", "open_private"),
}

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES, "monarch._core")
