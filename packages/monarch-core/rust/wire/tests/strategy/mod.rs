//! Strategies for arbitrary values of all wire types.
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use wire::control::{CallState, DrainLimits, ExpiredCall, ProcPlan};
use wire::exit::ProcEnd;
use wire::frame::{LIMITED, TRACED};
use wire::{BlockId, CallId, Control, ExitReason, Frame, MailboxId, Message, Part, ProcUid, Reply, Status, Trace};

pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn drain() -> impl Strategy<Value = DrainLimits> {
    any::<(u64, u64)>().prop_map(|(message_ms, actor_ms)| DrainLimits { message_ms, actor_ms })
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

pub fn block() -> impl Strategy<Value = BlockId> {
    any::<(u32, u64)>().prop_map(|(segment, offset)| BlockId { segment, offset })
}

pub fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        (bytes(), any::<bool>()).prop_map(|(data, readonly)| Part::Inline { data: data.into(), readonly }),
        (block(), any::<u64>(), any::<bool>()).prop_map(|(block, len, readonly)| Part::Shared { block, len, readonly }),
        (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(number, len, readonly)| Part::OutOfBand { number, len, readonly }),
        (any::<u64>(), any::<u64>(), bytes(), any::<bool>()).prop_map(|(number, len, record, readonly)| Part::Offered {
            number,
            len,
            record: record.into(),
            readonly
        }),
    ]
}

pub fn exit_reason() -> impl Strategy<Value = ExitReason> {
    prop_oneof![
        Just(ExitReason::Returned),
        any::<i32>().prop_map(ExitReason::ExitCode),
        any::<(i32, bool)>().prop_map(|(signal, core_dumped)| ExitReason::Signal { signal, core_dumped }),
        text().prop_map(ExitReason::Stopped),
        text().prop_map(ExitReason::NotStarted),
        text().prop_map(ExitReason::HostLost),
        text().prop_map(ExitReason::LinkLost),
        text().prop_map(ExitReason::ClientLost),
    ]
}

pub fn proc_end() -> impl Strategy<Value = ProcEnd> {
    (any::<(u32, bool, Vec<u64>)>(), text(), exit_reason(), texts(), bytes()).prop_map(
        |((pid, started, cleaning), host, reason, output, recent)| ProcEnd {
            pid,
            started,
            host,
            reason,
            cleaning: cleaning.into_iter().map(wire::MailboxId).collect(),
            output,
            recent,
        },
    )
}

fn plan() -> impl Strategy<Value = ProcPlan> {
    (texts(), vec((text(), text()), 0..3), text(), bytes(), any::<u64>(), text(), text(), text()).prop_map(
        |(command, env, cwd, setup, ready_ms, prefix, name, capture)| ProcPlan {
            command,
            env,
            cwd,
            setup,
            ready_ms,
            prefix,
            name,
            capture,
        },
    )
}

pub fn control() -> impl Strategy<Value = Control> {
    let uid = || any::<u64>().prop_map(ProcUid);
    prop_oneof![
        (any::<(u32, u32)>(), uid()).prop_map(|((version, pid), uid)| Control::Hello { version, uid, pid }),
        any::<(u32, u64)>().prop_map(|(segment, len)| Control::Segment { segment, len }),
        any::<u32>().prop_map(|segment| Control::SegmentGone { segment }),
        any::<u32>().prop_map(|segment| Control::SegmentLost { segment }),
        vec(block(), 0..20).prop_map(|blocks| Control::Release { blocks }),
        uid().prop_map(|target| Control::Connect { target }),
        uid().prop_map(|peer| Control::Connected { peer }),
        (uid(), vec((uid(), plan()), 0..3)).prop_map(|(owner, procs)| Control::SpawnProcs { owner, procs }),
        vec((uid(), proc_end()), 0..3).prop_map(|ends| Control::ProcsEnded { ends }),
        (any::<u64>(), bytes()).prop_map(|(m, spec)| Control::SpawnActor { mailbox: MailboxId(m), spec }),
        (uid(), any::<u64>(), proptest::option::of(drain()), text()).prop_map(|(uid, grace_ms, drain, reason)| Control::StopProc {
            uid,
            grace_ms,
            drain,
            reason
        }),
        any::<u64>().prop_map(|grace_ms| Control::Extend { grace_ms }),
        (any::<(u16, u64)>(), bytes()).prop_map(|((kind, call_id), body)| Control::System { kind, call_id: CallId(call_id), body }),
        any::<u64>().prop_map(|seq| Control::Ping { seq }),
        any::<u64>().prop_map(|seq| Control::Pong { seq }),
        any::<(u64, u8)>().prop_map(|(id, what)| Control::Inspect { id, what }),
        (any::<u64>(), bytes()).prop_map(|(id, body)| Control::Inspected { id, body }),
        (vec(expired_call(), 0..3), call_state()).prop_map(|(calls, state)| Control::CallsExpired { calls, state }),
    ]
}

pub fn trace() -> impl Strategy<Value = Trace> {
    prop_oneof![Just(Trace::NONE), (1..=u128::MAX, any::<u64>()).prop_map(|(id, span)| Trace { id, span })]
}

pub fn left() -> impl Strategy<Value = Option<Duration>> {
    proptest::option::of(any::<u64>().prop_map(Duration::from_micros))
}

fn call_state() -> impl Strategy<Value = CallState> {
    prop_oneof![
        text().prop_map(|behind| CallState::Queued { behind }),
        (text(), text()).prop_map(|(endpoint, place)| CallState::Running { endpoint, place }),
        Just(CallState::Owed),
        Just(CallState::Unsent),
        Just(CallState::Ended),
    ]
}

fn expired_call() -> impl Strategy<Value = ExpiredCall> {
    any::<(u64, u32, u64)>().prop_map(|(call_id, rank, millis)| ExpiredCall { call_id: CallId(call_id), rank, millis })
}

fn message() -> impl Strategy<Value = Message> {
    (any::<(u64, u64, u64, u32, u8)>(), trace(), left(), text(), bytes(), vec(part(), 0..5)).prop_map(
        |(head, trace, left, method, extent, parts)| {
            let (dest, sender, call_id, rank, flags) = head;
            Message {
                dest: MailboxId(dest),
                sender: MailboxId(sender),
                call_id: CallId(call_id),
                rank,
                flags: flags & !(TRACED | LIMITED),
                trace,
                left,
                method: method.into_bytes().into(),
                extent: extent.into(),
                parts,
            }
        },
    )
}

pub fn status() -> impl Strategy<Value = Status> {
    prop_oneof![Just(Status::Ok), Just(Status::Error), Just(Status::Failed), Just(Status::ProcEnded), Just(Status::Closed)]
}

fn reply() -> impl Strategy<Value = Reply> {
    (any::<(u64, u32)>(), status(), vec(part(), 0..5)).prop_map(|((call_id, rank), status, parts)| Reply {
        call_id: CallId(call_id),
        rank,
        status,
        parts,
    })
}

pub fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        message().prop_map(Frame::Message),
        reply().prop_map(Frame::Reply),
        any::<(u64, u64)>().prop_map(|(m, bytes)| Frame::Credit { mailbox: MailboxId(m), bytes }),
        control().prop_map(Frame::Control),
        bytes().prop_map(|b| Frame::Raw(b.into())),
    ]
}
