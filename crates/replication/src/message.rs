//! What members say to each other, byte by byte. All numbers are little-endian.
//!
//! ```text
//!  packet     0    1  version, 1
//!             1   16  group id
//!            17    8  to: a member id
//!            25    8  from: a member id
//!            33    1  what: 1 raft, 2 part of a state, 3 answer to such a part
//!            34    .  body
//!
//!  raft       1 type, 1 reject, 8 each: term, log term, index, commit, commit term,
//!             reject hint, request snapshot, priority; context; 4 count of entries, entries
//!  entry      1 kind (0 data, 1 no-op, 2 change of members), 8 term, 8 index, 8 time,
//!             8 wall clock; body
//!  part       8 term of the leader, 8 position, 8 term at it, 8 time at it, 8 number of the
//!             part, 1 whether it is the last; voters, learners, outgoing, learners next
//!             (2 count, 8 each); body
//!  answer     8 term, 8 position, 8 number of the part wanted next, 1 whether it is refused
//!
//!  body and context: 4 length, then so many bytes
//! ```
//!
//! A packet is taken apart completely before any of it is believed: no number is used as
//! a length that was not compared with what was received, ids are never zero, entries are
//! dense and belong behind the index they claim to follow. Types that only a member sends
//! to itself are refused.

use bytes::Bytes;
use model::time::ClusterTime;
use raft::eraftpb::{Entry as RaftEntry, EntryType, Message, MessageType};

use crate::entry::{LogPosition, Term};
use crate::error::ReceiveError;
use crate::member::{Configuration, ConfigurationChange, MEMBERS_MAX, MemberId};
use crate::raft_entry::{change_of, context, read_context, to_raft};
use crate::segment::GroupId;

const VERSION: u8 = 1;
const CONTEXT_BYTES_MAX: usize = 64;

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
    pub body: Bytes,
}

/// What the receiver of a part says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartAnswer {
    pub leader_term: Term,
    pub position: LogPosition,
    pub wanted: u64,
    pub is_refused: bool,
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
    pub from: MemberId,
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

fn begin(group: GroupId, to: MemberId, from: MemberId, what: u8) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&group.0.to_le_bytes());
    bytes.extend_from_slice(&to.get().to_le_bytes());
    bytes.extend_from_slice(&from.get().to_le_bytes());
    bytes.push(what);
    bytes
}

fn put(bytes: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_body(bytes: &mut Vec<u8>, body: &[u8]) {
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
}

/// The bytes of a message of `raft`. `None` for one that never leaves the member.
pub(crate) fn encode_raft(group: GroupId, message: &Message) -> Option<Vec<u8>> {
    let kind = type_number(message.get_msg_type())?;
    let (to, from) = (
        MemberId::checked(message.to)?,
        MemberId::checked(message.from)?,
    );
    let mut bytes = begin(group, to, from, 1);
    bytes.push(kind);
    bytes.push(u8::from(message.reject));
    put(
        &mut bytes,
        &[
            message.term,
            message.log_term,
            message.index,
            message.commit,
            message.commit_term,
            message.reject_hint,
            message.request_snapshot,
            message.priority as u64,
        ],
    );
    put_body(&mut bytes, &message.context);
    bytes.extend_from_slice(&(message.entries.len() as u32).to_le_bytes());
    for entry in message.entries.iter() {
        put_entry(&mut bytes, entry)?;
    }
    Some(bytes)
}

fn put_entry(bytes: &mut Vec<u8>, entry: &RaftEntry) -> Option<()> {
    let given = read_context(&entry.context);
    let change;
    let (kind, body): (u8, &[u8]) = match (given, entry.get_entry_type()) {
        (None, _) => (1, &[]),
        (Some(_), EntryType::EntryNormal) => (0, &entry.data),
        (Some(_), EntryType::EntryConfChange | EntryType::EntryConfChangeV2) => {
            change = change_of(&entry.data)?.encode();
            (2, &change)
        }
    };
    let (time, wall_ms) = given.unwrap_or((ClusterTime::ZERO, 0));
    bytes.push(kind);
    put(
        bytes,
        &[entry.term, entry.index, time.to_u64(), wall_ms as u64],
    );
    put_body(bytes, body);
    Some(())
}

pub(crate) fn encode_part(group: GroupId, to: MemberId, from: MemberId, part: &Part) -> Vec<u8> {
    let mut bytes = begin(group, to, from, 2);
    put(
        &mut bytes,
        &[
            part.leader_term.get(),
            part.position.get(),
            part.term.get(),
            part.time.to_u64(),
            part.number,
        ],
    );
    bytes.push(u8::from(part.is_last));
    let configuration = &part.configuration;
    for members in [
        &configuration.voters,
        &configuration.learners,
        &configuration.outgoing,
        &configuration.learners_next,
    ] {
        bytes.extend_from_slice(&(members.len() as u16).to_le_bytes());
        for member in members {
            put(&mut bytes, &[member.get()]);
        }
    }
    put_body(&mut bytes, &part.body);
    bytes
}

pub(crate) fn encode_part_answer(
    group: GroupId,
    to: MemberId,
    from: MemberId,
    answer: &PartAnswer,
) -> Vec<u8> {
    let mut bytes = begin(group, to, from, 3);
    put(
        &mut bytes,
        &[
            answer.leader_term.get(),
            answer.position.get(),
            answer.wanted,
        ],
    );
    bytes.push(u8::from(answer.is_refused));
    bytes
}

struct Reader<'a>(&'a [u8]);

type Read<T> = Result<T, ReceiveError>;

fn malformed<T>(what: &'static str) -> Read<T> {
    Err(ReceiveError::Malformed(what))
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        match self.0.split_first_chunk::<N>() {
            None => malformed("it is cut off"),
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(*taken)
            }
        }
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take::<1>()?[0])
    }

    fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => malformed("a flag is neither set nor clear"),
        }
    }

    fn number(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn member(&mut self) -> Read<MemberId> {
        match MemberId::checked(self.number()?) {
            Some(member) => Ok(member),
            None => malformed("a member id is zero"),
        }
    }

    fn members(&mut self) -> Read<Vec<MemberId>> {
        let count = usize::from(u16::from_le_bytes(self.take()?));
        if count > MEMBERS_MAX {
            return malformed("too many members");
        }
        (0..count).map(|_| self.member()).collect()
    }

    fn body(&mut self) -> Read<&[u8]> {
        let length = u32::from_le_bytes(self.take()?) as usize;
        match self.0.split_at_checked(length) {
            None => malformed("a length goes beyond the end"),
            Some((body, rest)) => {
                self.0 = rest;
                Ok(body)
            }
        }
    }
}

pub(crate) fn decode(group: GroupId, bytes: &[u8]) -> Read<Envelope> {
    let mut reader = Reader(bytes);
    if reader.byte()? != VERSION {
        return malformed("another version");
    }
    if u128::from_le_bytes(reader.take()?) != group.0 {
        return Err(ReceiveError::ForeignGroup);
    }
    let (to, from) = (reader.member()?, reader.member()?);
    let packet = match reader.byte()? {
        1 => Packet::Raft(read_raft(&mut reader, to, from)?),
        2 => Packet::Part(read_part(&mut reader)?),
        3 => Packet::PartAnswer(PartAnswer {
            leader_term: Term::new(reader.number()?),
            position: LogPosition::new(reader.number()?),
            wanted: reader.number()?,
            is_refused: reader.flag()?,
        }),
        _ => return malformed("an unknown kind of packet"),
    };
    if !reader.0.is_empty() {
        return malformed("more bytes than it should have");
    }
    Ok(Envelope { to, from, packet })
}

fn read_raft(reader: &mut Reader<'_>, to: MemberId, from: MemberId) -> Read<Message> {
    let Some(kind) = type_of(reader.byte()?) else {
        return malformed("an unknown type of message");
    };
    let mut message = Message::default();
    message.set_msg_type(kind);
    message.to = to.get();
    message.from = from.get();
    message.reject = reader.flag()?;
    message.term = reader.number()?;
    message.log_term = reader.number()?;
    message.index = reader.number()?;
    message.commit = reader.number()?;
    message.commit_term = reader.number()?;
    message.reject_hint = reader.number()?;
    message.request_snapshot = reader.number()?;
    message.priority = reader.number()? as i64;
    let context = reader.body()?;
    if context.len() > CONTEXT_BYTES_MAX {
        return malformed("a context is too long");
    }
    message.context = Bytes::copy_from_slice(context);
    if message.term == 0 || message.term >= 1 << 56 {
        return malformed("an impossible term");
    }
    if message.index >= u64::MAX / 2 || message.commit >= u64::MAX / 2 {
        return malformed("an impossible position");
    }
    let count = u32::from_le_bytes(reader.take()?);
    if count > 0 && kind != MessageType::MsgAppend {
        return malformed("entries where none belong");
    }
    let mut entries = Vec::new();
    let (mut index, mut term) = (message.index, message.log_term);
    for _ in 0..count {
        let entry = read_entry(reader)?;
        index += 1;
        if entry.index != index || entry.term < term || entry.term > message.term {
            return malformed("entries out of order");
        }
        term = entry.term;
        entries.push(entry);
    }
    message.set_entries(entries.into());
    Ok(message)
}

fn read_entry(reader: &mut Reader<'_>) -> Read<RaftEntry> {
    let kind = reader.byte()?;
    let (term, index) = (reader.number()?, reader.number()?);
    let time = ClusterTime::from_u64(reader.number()?);
    let wall_ms = reader.number()? as i64;
    let body = reader.body()?;
    let mut entry = match kind {
        0 => RaftEntry {
            data: Bytes::copy_from_slice(body),
            context: context(time, wall_ms),
            ..RaftEntry::default()
        },
        1 if body.is_empty() => RaftEntry::default(),
        2 => {
            let Ok(change) = ConfigurationChange::decode(body) else {
                return malformed("not a change of members");
            };
            to_raft(&crate::entry::Entry {
                position: LogPosition::new(index),
                term: Term::new(term),
                time,
                wall_ms,
                kind: crate::entry::EntryKind::Configuration(change),
                payload: Bytes::new(),
            })
        }
        _ => return malformed("an unknown kind of entry"),
    };
    entry.term = term;
    entry.index = index;
    Ok(entry)
}

fn read_part(reader: &mut Reader<'_>) -> Read<Part> {
    let leader_term = Term::new(reader.number()?);
    let position = LogPosition::new(reader.number()?);
    let term = Term::new(reader.number()?);
    let time = ClusterTime::from_u64(reader.number()?);
    let number = reader.number()?;
    let is_last = reader.flag()?;
    let configuration = Configuration {
        voters: reader.members()?,
        learners: reader.members()?,
        outgoing: reader.members()?,
        learners_next: reader.members()?,
    };
    if position == LogPosition::BEFORE_FIRST || configuration.voters.is_empty() {
        return malformed("a state that nobody can have");
    }
    Ok(Part {
        leader_term,
        position,
        term,
        time,
        configuration,
        number,
        is_last,
        body: Bytes::copy_from_slice(reader.body()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, EntryKind};
    use crate::member::MemberStep;
    use proptest::prelude::*;

    const GROUP: GroupId = GroupId(0x1234);

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
            body: Bytes::from_static(b"some of the state"),
        }
    }

    fn packets() -> Vec<(Vec<u8>, Packet)> {
        let answer = PartAnswer {
            leader_term: Term::new(7),
            position: LogPosition::new(90),
            wanted: 4,
            is_refused: false,
        };
        vec![
            (
                encode_raft(GROUP, &append()).expect("encodes"),
                Packet::Raft(append()),
            ),
            (
                encode_part(GROUP, member(2), member(1), &part()),
                Packet::Part(part()),
            ),
            (
                encode_part_answer(GROUP, member(2), member(1), &answer),
                Packet::PartAnswer(answer),
            ),
        ]
    }

    #[test]
    fn what_is_sent_is_received_and_nothing_shorter_or_longer() {
        for (bytes, packet) in packets() {
            let envelope = decode(GROUP, &bytes).expect("decodes");
            assert_eq!(envelope.packet, packet);
            assert_eq!((envelope.to, envelope.from), (member(2), member(1)));
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
            assert_eq!(encode_raft(GROUP, &message), None);
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
                let again = encode_raft(GROUP, &message).expect("it can be sent on");
                prop_assert_eq!(decode(GROUP, &again).map(|e| e.packet), Ok(Packet::Raft(message)));
            }
        }
    }
}
