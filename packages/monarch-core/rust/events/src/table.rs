//! The types of events: one table for the code that emits them, for readers, and for docs/events.md.
//!
//! Numbers and names are stable: a type may get further fields at its end, and keeps the fields that it has.

use crate::recorder::current;

/// The meaning of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// The id of a process, mesh, actor or call.
    Id,
    Count,
    Bytes,
    Nanoseconds,
    Float,
    /// A text that occurs often, stored once.
    Name,
    Text,
}

impl Unit {
    pub fn word(self) -> &'static str {
        match self {
            Unit::Id => "id",
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "ns",
            Unit::Float => "float",
            Unit::Name => "name",
            Unit::Text => "text",
        }
    }
}

/// A field of an event: its name, its unit, and a description for docs/events.md.
pub struct Field {
    pub name: &'static str,
    pub unit: Unit,
    pub about: &'static str,
}

/// A type of events.
pub struct EventType {
    pub number: u16,
    pub name: &'static str,
    pub about: &'static str,
    /// False: the name is reserved, and no code emits it yet.
    pub emitted: bool,
    pub fields: &'static [Field],
}

/// The type with this number.
pub fn type_of(number: u16) -> Option<&'static EventType> {
    // Numbers count from 1 without a gap, which a test checks.
    TABLE.get(usize::from(number).checked_sub(1)?)
}

macro_rules! unit {
    (Id) => {
        u64
    };
    (Count) => {
        u64
    };
    (Bytes) => {
        u64
    };
    (Nanoseconds) => {
        u64
    };
    (Float) => {
        f64
    };
    (Name) => {
        &[u8]
    };
    (Text) => {
        &[u8]
    };
}

macro_rules! word {
    ($ring:ident, Name, $value:ident) => {
        $ring.name($value)
    };
    ($ring:ident, Text, $value:ident) => {
        $ring.text($value)
    };
    ($ring:ident, Float, $value:ident) => {
        $value.to_bits()
    };
    ($ring:ident, $unit:ident, $value:ident) => {
        $value
    };
}

macro_rules! events {
    ($($number:literal $function:ident $name:literal $emitted:literal $about:literal {
        $($field:ident: $unit:ident $field_about:literal,)*
    })*) => {
        pub static TABLE: &[EventType] = &[$(EventType {
            number: $number,
            name: $name,
            about: $about,
            emitted: $emitted,
            fields: &[$(Field { name: stringify!($field), unit: Unit::$unit, about: $field_about }),*],
        }),*];

        $(
            #[doc = $about]
            #[inline]
            #[allow(clippy::too_many_arguments)]
            pub fn $function($($field: unit!($unit)),*) {
                if crate::recorder::is_on() {
                    #[inline(never)]
                    #[allow(clippy::too_many_arguments)]
                    fn emit($($field: unit!($unit)),*) {
                        if let Some(ring) = current() {
                            ring.write($number, &[$(word!(ring, $unit, $field)),*]);
                        }
                    }
                    emit($($field),*);
                }
            }
        )*
    };
}

events! {
    1 proc_start "proc.start" true "This process has come up as a member of its job." {
        mesh: Name "unique name of the mesh of procs; `client` for the client",
        rank: Count "rank in that mesh",
        pid: Count "the operating system's number of the process",
        id: Id "number of that mesh",
        age: Nanoseconds "time since it came up: it is recorded again when recording begins",
    }
    2 proc_end "proc.end" true "A proc has ended; the agent of its host records it." {
        proc: Id "the proc",
        kind: Name "kind of the exit reason",
        number: Count "exit code or signal",
        pid: Count "what its process number was",
        detail: Text "detail of the exit reason",
    }
    3 actor_start "actor.start" true "An actor has a thread and takes messages." {
        mesh: Id "its mesh",
        actor: Name "its display name",
        age: Nanoseconds "time since then: it is recorded again when recording begins",
    }
    4 actor_end "actor.end" true "An actor takes no more messages." {
        mesh: Id "its mesh",
        actor: Name "its display name",
        kind: Name "`stopped`, or the kind of the failure",
        detail: Text "the reason in words",
    }
    5 message_sent "message.sent" true "A message was handed to a link, or to an actor of this process." {
        mesh: Id "mesh of the receiving actor",
        method: Name "endpoint",
        rank: Count "rank of the receiver in the shape that was addressed",
        proc: Id "process of the receiver",
        sender: Id "mesh of the sending actor; 0 outside actors",
        call: Id "number of the call in the sender; 0 without a waiting caller",
        bytes: Bytes "size of the arguments",
        parent: Id "span that sends it; 0 without a trace",
        offset: Count "1 more than the first rank of the part of the mesh that was addressed; 0: the whole mesh",
        dims: Name "dimensions of that part, each with its size and stride, such as `hosts=2:4 gpus=4:1`",
    }
    6 message_received "message.received" true "A message waits in the mailbox of its actor." {
        mesh: Id "mesh of the actor",
        method: Name "endpoint",
        rank: Count "rank of the receiver in the shape that was addressed",
        proc: Id "process of the sender",
        sender: Id "mesh of the sending actor; 0 outside actors",
        call: Id "number of the call in the sender; 0 without a waiting caller",
        bytes: Bytes "size of the arguments",
        depth: Count "messages in the mailbox, this one included",
    }
    7 message_begun "message.begun" true "An actor begins to handle a message." {
        mesh: Id "mesh of the actor",
        method: Name "endpoint",
        rank: Count "rank of the receiver in the shape that was addressed",
        proc: Id "process of the sender",
        call: Id "number of the call in the sender; 0 without a waiting caller",
        parent: Id "span of the message; 0 without a trace",
    }
    8 message_handled "message.handled" true "An actor has handled a message." {
        mesh: Id "mesh of the actor",
        method: Name "endpoint",
        rank: Count "rank of the receiver in the shape that was addressed",
        proc: Id "process of the sender",
        call: Id "number of the call in the sender; 0 without a waiting caller",
        duration: Nanoseconds "time since it was begun",
        failed: Count "1 if the endpoint raised",
    }
    9 queue_depth "queue.depth" true "A mailbox has grown to a power of two of messages, 64 or more." {
        mesh: Id "mesh of the actor",
        depth: Count "messages in the mailbox",
    }
    10 credit_stall "credit.stall" true "A sender had to wait because the receiver is behind." {
        mesh: Id "mesh of the receiving actor",
        method: Name "endpoint",
        proc: Id "process of the receiver",
        duration: Nanoseconds "how long it waited",
    }
    11 link_up "link.up" true "A link to another process of this host has its socket." {
        proc: Id "the other process",
    }
    12 link_down "link.down" true "A link to another process of this host has ended." {
        proc: Id "the other process",
        sent: Bytes "what this process has written to its socket",
        received: Bytes "what this process has read from it",
    }
    13 link_resumed "link.resumed" true "A session with another host has a connection, its first or another one; agents record it." {
        host: Id "the agent of the other host",
        received: Count "frames that the other host has received in this session; 0 for a first connection",
        waiting: Bytes "bytes that wait to be sent or acknowledged",
        round_trip: Nanoseconds "round trip of the connection, as the kernel has measured it; 0 if it does not know",
    }
    14 cast_sent "cast.sent" true "A call to several targets on other hosts was handed to the agent, to go down a tree." {
        mesh: Id "mesh of the receiving actors",
        method: Name "endpoint",
        targets: Count "receivers on other hosts",
        call: Id "number of the call in the sender; 0 without a waiting caller",
        bytes: Bytes "size of the arguments",
        parent: Id "span that sends it; 0 without a trace",
        sender: Id "mesh of the sending actor; 0 outside actors",
        offset: Count "1 more than the first rank of the part of the mesh that was addressed; 0: the whole mesh",
        dims: Name "dimensions of that part, each with its size and stride, such as `hosts=2:4 gpus=4:1`",
    }
    15 cast_step "cast.step" true "An agent has passed a cast on to another host." {
        host: Id "the agent of the other host",
        number: Count "number of the cast in its group",
        bytes: Bytes "size of the call",
    }
    16 reduction_step "reduction.step" true "An agent has passed answers on towards the caller, combined as far as they can be." {
        host: Id "the agent of the other host",
        number: Count "number of the cast in its group",
        answers: Count "ranks whose answers they are",
    }
    17 span_enter "span.enter" true "A span has begun on this thread." {
        span: Id "number of the span in this process",
        parent: Id "the span around it on this thread; 0: none",
        name: Name "name of the span",
        fields: Text "attributes as JSON",
    }
    18 span_exit "span.exit" true "A span has ended." {
        span: Id "number of the span in this process",
        name: Name "name of the span",
        duration: Nanoseconds "since it was entered",
        failed: Count "1 if an exception left it",
    }
    19 log_line "log.line" true "The runtime's own log has an entry (logs.md)." {
        name: Name "event of the log",
        level: Count "10 debug, 20 info, 30 warn, 40 error",
        fields: Text "its fields as JSON",
    }
    20 supervision_delivered "supervision.delivered" true "A failure was delivered to the owner of a mesh." {
        mesh: Id "the mesh that failed",
        rank: Count "the rank that failed",
        owner: Name "display name of the owner",
        kind: Name "kind of the failure's reason",
    }
    21 user_event "user.event" true "A program has recorded something (`monarch.extension.events.emit`)." {
        name: Name "name of the event",
        fields: Text "fields as JSON",
    }
    22 metric_update "metric.update" true "An instrument of `get_meter` was updated." {
        meter: Name "name of the meter",
        name: Name "name of the instrument",
        kind: Name "`counter`, `up_down_counter`, `histogram` or `gauge`",
        amount: Float "what was added or recorded",
        attributes: Text "attributes as JSON",
    }
    23 link_broken "link.broken" true "A connection to another host has ended; agents record it. The session may go on with another one." {
        host: Id "the agent of the other host",
        end: Name "`closed` or `reset` by the other side, `replaced` by another connection, `ended` by this side, `failed`, `malformed`",
        sent: Bytes "what the other host's kernel has acknowledged on this connection",
        received: Bytes "what has come by this connection",
        round_trip: Nanoseconds "round trip of the connection, as the kernel has measured it; 0 if it does not know",
    }
    24 call_done "call.done" true "All answers that a call of this process waits for have come, or one that is an error." {
        call: Id "number of the call, as in `message.sent` and `cast.sent`",
        targets: Count "receivers that were to answer",
        stream: Count "1 if each answer counts by itself",
        failed: Count "1 if an answer is an error",
    }
    25 mesh_made "mesh.made" true "This process has spawned a mesh, which it owns." {
        mesh: Id "the mesh",
        parent: Id "the mesh of procs of an actor mesh, the mesh of hosts of a mesh of procs; 0 for none",
        class: Name "class of the actors; empty for a mesh of procs",
        name: Name "the name that the program gave",
        creator: Name "display name of the owner",
        shape: Text "labels and sizes of the dimensions as a JSON object",
        age: Nanoseconds "time since then: it is recorded again when recording begins",
        offset: Count "1 more than the first rank of the part of the parent on which it was spawned",
        dims: Name "dimensions of that part, as in `message.sent`",
    }
    26 output_line "output.line" true "A proc has printed a line; the agent of its host records it." {
        proc: Id "the proc",
        stream: Name "`stdout` or `stderr`",
        line: Text "the line without its end",
    }
    27 log_record "log.record" true "A record of Python's `logging` in this process." {
        actor: Id "mesh of the actor that made it; 0 outside actors",
        logger: Name "name of the logger",
        level: Count "its level, such as 20 for INFO",
        line: Text "the message",
    }
    28 supervision_handled "supervision.handled" true "A failure that was delivered was handled by its owner, or by no handler." {
        mesh: Id "the mesh that failed",
        rank: Count "the rank that failed",
        owner: Name "display name of the owner",
        handled: Count "0 if it was not handled, so that the program ends",
    }
    29 wakeup_lost "wakeup.lost" true "A thread slept although what it waits for was there. The runtime has woken it." {
        mesh: Id "mesh of the actor whose thread it is; 0: of none",
        lost_at: Name "hand-over that failed: `thread`, `descriptor` (of the mailbox), `poller`, `set` (of the poller), `call`",
        messages: Count "messages and events in the mailbox",
        slept: Nanoseconds "time since a look saw the thread sleep; 0: not known",
    }
    30 frame_refused "frame.refused" true "A malformed frame or request of another process was dropped. It has no other effect." {
        proc: Id "process that sent it",
        what: Name "`frame`, `fragment`, `part`, `cast`, `answer`, `failure`, `spawn`, `stop`, or `request` with its number",
        bytes: Bytes "its size",
    }
}
