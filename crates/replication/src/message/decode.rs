//! Bytes into packets, each number looked at before it is believed. The layout is drawn in
//! `message/mod.rs`.

use bytes::Bytes;
use model::time::ClusterTime;
use raft::eraftpb::{Entry as RaftEntry, Message, MessageType};

use super::{CONTEXT_BYTES_MAX, Envelope, Packet, Part, PartAnswer, Sender, VERSION, type_of};
use crate::entry::{LogPosition, Term};
use crate::error::ReceiveError;
use crate::member::{Configuration, ConfigurationChange, MEMBERS_MAX, MemberId};
use crate::raft_entry::{context, to_raft};
use crate::segment::GroupId;

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
    let to = reader.member()?;
    let from = Sender {
        group,
        member: reader.member()?,
        applied: LogPosition::new(reader.number()?),
        is_resting: reader.flag()?,
    };
    let packet = match reader.byte()? {
        1 => Packet::Raft(read_raft(&mut reader, to, from.member)?),
        2 => Packet::Part(read_part(&mut reader)?),
        3 => Packet::PartAnswer(PartAnswer {
            leader_term: Term::new(reader.number()?),
            position: LogPosition::new(reader.number()?),
            wanted: reader.number()?,
            is_refused: reader.flag()?,
            held: Bytes::copy_from_slice(reader.body()?),
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
    let is_kept = reader.flag()?;
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
        is_kept,
        body: Bytes::copy_from_slice(reader.body()?),
    })
}
