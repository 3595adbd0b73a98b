//! What members say to each other, byte by byte. All numbers are little-endian.
//!
//! ```text
//!  packet     0    1  version, 3
//!             1   16  group id
//!            17    8  to: a member id
//!            25    8  from: a member id
//!            33    8  what the sender has applied
//!            41    1  whether the sender rests: it does not stand for election now
//!            42    1  what: 1 raft, 2 part of a state, 3 answer to such a part
//!            43    .  body
//!
//!  raft       1 type, 1 reject, 8 each: term, log term, index, commit, commit term,
//!             reject hint, request snapshot, priority; context; 4 count of entries, entries
//!  entry      1 kind (0 data, 1 no-op, 2 change of members), 8 term, 8 index, 8 time,
//!             8 wall clock; body
//!  part       8 term of the leader, 8 position, 8 term at it, 8 time at it, 8 number of the
//!             part, 1 whether it is the last, 1 whether the receiver keeps what it holds; voters,
//!             learners, outgoing, learners next (2 count, 8 each); body
//!  answer     8 term, 8 position, 8 number of the part wanted next, 1 whether it is refused; body:
//!             what is held of the part wanted next
//!
//!  body and context: 4 length, then so many bytes
//! ```
//!
//! A packet is taken apart completely before any of it is believed: no number is used as
//! a length that was not compared with what was received, ids are never zero, entries are
//! dense and belong behind the index they claim to follow. Types that only a member sends
//! to itself are refused.

mod decode;
mod encode;

use bytes::Bytes;
use model::time::ClusterTime;
use raft::eraftpb::{Message, MessageType};

use crate::entry::{LogPosition, Term};
use crate::member::{Configuration, MemberId};
use crate::segment::GroupId;

pub(crate) use decode::decode;
pub(crate) use encode::{encode_part, encode_part_answer, encode_raft};

const VERSION: u8 = 3;
const CONTEXT_BYTES_MAX: usize = 64;

/// What every packet says of who sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub group: GroupId,
    pub member: MemberId,
    pub applied: LogPosition,
    /// It does not stand for election now, whatever its priority.
    pub is_resting: bool,
}

/// A part of a state that is being copied to another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Of the leader that sends it.
    pub leader_term: Term,
    pub position: LogPosition,
    pub term: Term,
    pub time: ClusterTime,
    pub configuration: Configuration,
    pub number: u64,
    pub is_last: bool,
    /// The body describes what the receiver said it holds: it is the same here.
    pub is_kept: bool,
    pub body: Bytes,
}

/// What the receiver of a part says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartAnswer {
    pub leader_term: Term,
    pub position: LogPosition,
    pub wanted: u64,
    pub is_refused: bool,
    /// What the receiver holds of the part that is wanted; empty if nothing.
    pub held: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Packet {
    Raft(Message),
    Part(Part),
    PartAnswer(PartAnswer),
}

/// A packet with its addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Envelope {
    pub to: MemberId,
    pub from: Sender,
    pub packet: Packet,
}

fn type_number(kind: MessageType) -> Option<u8> {
    Some(match kind {
        MessageType::MsgAppend => 1,
        MessageType::MsgAppendResponse => 2,
        MessageType::MsgRequestVote => 3,
        MessageType::MsgRequestVoteResponse => 4,
        MessageType::MsgHeartbeat => 5,
        MessageType::MsgHeartbeatResponse => 6,
        MessageType::MsgRequestPreVote => 7,
        MessageType::MsgRequestPreVoteResponse => 8,
        MessageType::MsgTimeoutNow => 9,
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgSnapshot
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp => return None,
    })
}

fn type_of(number: u8) -> Option<MessageType> {
    Some(match number {
        1 => MessageType::MsgAppend,
        2 => MessageType::MsgAppendResponse,
        3 => MessageType::MsgRequestVote,
        4 => MessageType::MsgRequestVoteResponse,
        5 => MessageType::MsgHeartbeat,
        6 => MessageType::MsgHeartbeatResponse,
        7 => MessageType::MsgRequestPreVote,
        8 => MessageType::MsgRequestPreVoteResponse,
        9 => MessageType::MsgTimeoutNow,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, EntryKind};
    use crate::error::ReceiveError;
    use crate::member::{ConfigurationChange, MemberStep};
    use crate::raft_entry::to_raft;
    use proptest::prelude::*;

    const GROUP: GroupId = GroupId(0x1234);

    fn sender() -> Sender {
        Sender {
            group: GROUP,
            member: member(1),
            applied: LogPosition::new(3),
            is_resting: true,
        }
    }

    fn member(id: u64) -> MemberId {
        MemberId::new(id)
    }

    fn append() -> Message {
        let entry = |position: u64, kind, payload: &'static [u8]| {
            to_raft(&Entry {
                position: LogPosition::new(position),
                term: Term::new(position),
                time: ClusterTime::new(position as u32, 1),
                wall_ms: -5,
                kind,
                payload: Bytes::from_static(payload),
            })
        };
        let change = ConfigurationChange {
            steps: vec![MemberStep::Voter(member(4)), MemberStep::Remove(member(1))],
        };
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        message.to = 2;
        message.from = 1;
        message.term = 9;
        message.log_term = 3;
        message.index = 4;
        message.commit = 4;
        message.context = Bytes::from_static(b"context");
        message.set_entries(
            vec![
                entry(5, EntryKind::Data, b"payload"),
                entry(6, EntryKind::Noop, b""),
                entry(7, EntryKind::Configuration(change), b""),
                entry(8, EntryKind::Data, b""),
            ]
            .into(),
        );
        message
    }

    fn part() -> Part {
        Part {
            leader_term: Term::new(7),
            position: LogPosition::new(90),
            term: Term::new(6),
            time: ClusterTime::new(8, 9),
            configuration: Configuration {
                voters: vec![member(1), member(2)],
                learners: vec![member(3)],
                outgoing: vec![member(1)],
                learners_next: vec![],
            },
            number: 3,
            is_last: true,
            is_kept: true,
            body: Bytes::from_static(b"some of the state"),
        }
    }

    fn packets() -> Vec<(Vec<u8>, Packet)> {
        let answer = PartAnswer {
            leader_term: Term::new(7),
            position: LogPosition::new(90),
            wanted: 4,
            is_refused: false,
            held: Bytes::from_static(b"some of the rest"),
        };
        vec![
            (
                encode_raft(&sender(), &append()).expect("encodes"),
                Packet::Raft(append()),
            ),
            (
                encode_part(&sender(), member(2), &part()),
                Packet::Part(part()),
            ),
            (
                encode_part_answer(&sender(), member(2), &answer),
                Packet::PartAnswer(answer),
            ),
        ]
    }

    #[test]
    fn what_is_sent_is_received_and_nothing_shorter_or_longer() {
        for (bytes, packet) in packets() {
            let envelope = decode(GROUP, &bytes).expect("decodes");
            assert_eq!(envelope.packet, packet);
            assert_eq!((envelope.to, envelope.from), (member(2), sender()));
            for end in 0..bytes.len() {
                assert!(decode(GROUP, &bytes[..end]).is_err(), "{end}");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(decode(GROUP, &longer).is_err());
            assert_eq!(decode(GroupId(1), &bytes), Err(ReceiveError::ForeignGroup));
        }
    }

    #[test]
    fn what_a_member_says_to_itself_is_not_sent() {
        for kind in [
            MessageType::MsgHup,
            MessageType::MsgPropose,
            MessageType::MsgSnapshot,
            MessageType::MsgCheckQuorum,
        ] {
            let mut message = append();
            message.set_msg_type(kind);
            assert_eq!(encode_raft(&sender(), &message), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever arrives, it is decoded or refused, without a panic.
        #[test]
        fn damaged_packets_never_panic(
            which in 0..3usize,
            changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        ) {
            let (mut bytes, _) = packets().swap_remove(which);
            for (at, value) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            if let Ok(envelope) = decode(GROUP, &bytes)
                && let Packet::Raft(message) = envelope.packet
            {
                let again = encode_raft(&envelope.from, &message).expect("it can be sent on");
                prop_assert_eq!(decode(GROUP, &again).map(|e| e.packet), Ok(Packet::Raft(message)));
            }
        }
    }
}
