//! Packets into bytes. The layout is drawn in `message/mod.rs`.

use model::time::ClusterTime;
use raft::eraftpb::{Entry as RaftEntry, EntryType, Message};

use super::{Part, PartAnswer, Sender, VERSION, type_number};
use crate::member::MemberId;
use crate::raft_entry::{change_of, read_context};

/// What a message takes without its context and its entries, and an entry without its body.
const MESSAGE_BYTES: usize = 2 + 8 * 8 + 4 + 4;
const ENTRY_BYTES: usize = 1 + 4 * 8 + 4;

fn begin(from: &Sender, to: MemberId, what: u8) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&from.group.0.to_le_bytes());
    put(
        &mut bytes,
        &[to.get(), from.member.get(), from.applied.get()],
    );
    bytes.push(u8::from(from.is_resting));
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
pub(crate) fn encode_raft(from: &Sender, message: &Message) -> Option<Vec<u8>> {
    let kind = type_number(message.get_msg_type())?;
    let to = MemberId::checked(message.to)?;
    let mut bytes = begin(from, to, 1);
    // At once: entries may be megabytes, and growing would copy them again and again.
    let entry_bytes = |entry: &RaftEntry| ENTRY_BYTES + entry.data.len();
    let all: usize = message.entries.iter().map(entry_bytes).sum();
    bytes.reserve(MESSAGE_BYTES + message.context.len() + all);
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

pub(crate) fn encode_part(from: &Sender, to: MemberId, part: &Part) -> Vec<u8> {
    let mut bytes = begin(from, to, 2);
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
    bytes.push(u8::from(part.is_kept));
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

pub(crate) fn encode_part_answer(from: &Sender, to: MemberId, answer: &PartAnswer) -> Vec<u8> {
    let mut bytes = begin(from, to, 3);
    put(
        &mut bytes,
        &[
            answer.leader_term.get(),
            answer.position.get(),
            answer.wanted,
        ],
    );
    bytes.push(u8::from(answer.is_refused));
    put_body(&mut bytes, &answer.held);
    bytes
}
