//! How members reach each other: packets of the log as commands to the same listener that clients use.
//!
//! Each member dials every other and only sends on what it has dialled; what it receives comes through
//! its own listener. A link begins with `_terndbJoin`, which says who is calling whom and is answered; then
//! follow `_terndbReplicate` commands without answers, each with as many packets as were waiting.
//!
//! ```text
//!   {_terndbJoin: 1, set, replicaSetId?, to: member, toLife, from: member, fromLife, host, newcomer: bool,
//!    $db: "admin"}
//!   {_terndbReplicate: 1, parts: [binary…], more: bool, $db: "admin"}
//! ```
//!
//! A packet that is too long for a command is cut: `more` says that the last part of the command
//! continues in the next one. The connection keeps their order.
//!
//! Packets may be lost, and are: when there is no connection, when a link's queue is full, when a write
//! takes too long. The log repeats what matters.
//!
//! The tasks behind the links are in `link.rs`.
//!
//! A server that was never configured takes the part that `_terndbJoin` gives to a newcomer. It is given
//! only to a member that is no voter yet ⚑: a voter that has lost its data has also lost its promises, and
//! must be removed and added again. It is then in another life (`configuration/lives.rs`), and so is any
//! other server that gets the number: what the one before still says is not taken for its word ⚑.

use super::link::Link;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::{Code, Error};
use parking_lot::{Mutex, RwLock};
use replication::{MemberId, Transport};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use wire::Request;
use wire::protocol::{FLAG_MORE_TO_COME, HEADER_SIZE, Header, MESSAGE_BYTES_MAX, OP_MSG};

pub(crate) const JOIN: &str = "_terndbJoin";
pub(crate) const REPLICATE: &str = "_terndbReplicate";

/// What may wait for one member before more is thrown away.
const QUEUE_PACKETS_MAX: usize = 4096;
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// The longest part of a packet in one command.
const PART_BYTES_MAX: usize = 8 << 20;
/// Packets that arrive in parts may not grow beyond this.
const PACKET_BYTES_MAX: usize = 1 << 30;

/// A member of the configuration in one of its lives: one member of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberNumber {
    /// The configuration's id, 0 to 255.
    pub id: i32,
    pub life: u32,
}

impl MemberNumber {
    /// The number of a member with which the set begins.
    pub const fn first(id: i32) -> Self {
        Self { id, life: 0 }
    }

    pub(crate) fn in_log(self) -> MemberId {
        let id = u64::from(self.id.unsigned_abs() & 0xFF);
        MemberId::new((u64::from(self.life) << 8) + id + 1)
    }

    pub(crate) fn from_log(member: MemberId) -> Self {
        let number = member.get() - 1;
        Self {
            id: (number & 0xFF) as i32,
            life: u32::try_from(number >> 8).unwrap_or(u32::MAX),
        }
    }
}

/// The configuration's id of a member of the log.
pub(crate) fn configuration_id(member: MemberId) -> i32 {
    MemberNumber::from_log(member).id
}

/// What a caller says of itself and of whom it calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Introduction {
    pub(crate) set: String,
    pub(crate) replica_set_id: Option<ObjectId>,
    pub(crate) to: MemberNumber,
    pub(crate) from: MemberNumber,
    /// Where the caller is reached.
    pub(crate) host: String,
    /// Whether the called one may begin as an empty member.
    pub(crate) newcomer: bool,
}

impl Introduction {
    pub(super) fn to_command(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer.append(JOIN, 1).append("set", self.set.as_str());
        if let Some(id) = self.replica_set_id {
            writer.append("replicaSetId", id);
        }
        writer
            .append("to", self.to.id)
            .append("toLife", i64::from(self.to.life))
            .append("from", self.from.id)
            .append("fromLife", i64::from(self.from.life))
            .append("host", self.host.as_str())
            .append("newcomer", self.newcomer)
            .append("$db", "admin");
        writer.finish()
    }

    pub(crate) fn parse(body: Doc<'_>) -> Result<Self, Error> {
        let number = |id: &str, life: &str| {
            let life = match body.get(life) {
                None => Some(0),
                Some(ValueRef::Int64(life)) => u32::try_from(life).ok(),
                Some(_) => None,
            };
            match (body.get(id), life) {
                (Some(ValueRef::Int32(id)), Some(life)) if (0..=255).contains(&id) => {
                    Ok(MemberNumber { id, life })
                }
                _ => Err(malformed(JOIN)),
            }
        };
        let text = |name: &str| body.get_str(name).ok_or_else(|| malformed(JOIN));
        Ok(Self {
            set: text("set")?.to_owned(),
            replica_set_id: match body.get("replicaSetId") {
                Some(ValueRef::ObjectId(id)) => Some(id),
                _ => None,
            },
            to: number("to", "toLife")?,
            from: number("from", "fromLife")?,
            host: text("host")?.to_owned(),
            newcomer: body.get("newcomer") == Some(ValueRef::Boolean(true)),
        })
    }
}

fn malformed(command: &str) -> Error {
    Error::bad_value(format!("{command} is malformed"))
}

type Introduce = Box<dyn Fn(MemberId) -> Option<Introduction> + Send + Sync>;
type Report = Box<dyn Fn(MemberId, Absence) + Send + Sync>;

/// What a link knows of a member that it does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// Packets do not arrive.
    Unreachable,
    /// The connection was closed, and nobody listens any more: its process has ended.
    Gone,
}

/// Where a member is reached.
struct Place {
    host: String,
    /// Given at the start: it holds whatever a configuration says.
    is_fixed: bool,
}

/// What is known about the other members.
#[derive(Default)]
pub(super) struct Directory {
    hosts: RwLock<HashMap<MemberId, Place>>,
    detours: RwLock<BTreeMap<String, String>>,
    pub(super) introduce: RwLock<Option<Introduce>>,
    report: RwLock<Option<Report>>,
}

impl Directory {
    pub(super) fn address_of(&self, member: MemberId) -> Option<String> {
        let hosts = self.hosts.read();
        Some(self.detour(&hosts.get(&member)?.host))
    }

    fn detour(&self, host: &str) -> String {
        let detours = self.detours.read();
        detours.get(host).map_or(host, String::as_str).to_owned()
    }

    pub(super) fn report(&self, member: MemberId, absence: Absence) {
        if let Some(report) = &*self.report.read() {
            report(member, absence);
        }
    }
}

/// Links to the other members.
pub(crate) struct Peers {
    runtime: Option<tokio::runtime::Handle>,
    directory: Arc<Directory>,
    links: Mutex<HashMap<MemberId, Queue>>,
}

/// What waits for a link.
struct Queue {
    packets: mpsc::Sender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Peers {
    /// Links live in the runtime in which this is called; outside of one there are none.
    pub(crate) fn new() -> Self {
        Self {
            runtime: tokio::runtime::Handle::try_current().ok(),
            directory: Arc::default(),
            links: Mutex::default(),
        }
    }

    /// What links say when they begin, and whom they tell that a member is away.
    pub(crate) fn introduce_with(&self, introduce: Introduce, report: Report) {
        *self.directory.introduce.write() = Some(introduce);
        *self.directory.report.write() = Some(report);
    }

    /// Where a member is reached. If that is another place than before, the link to the old one ends.
    pub(crate) fn set_host(&self, member: MemberId, host: &str) {
        let mut hosts = self.directory.hosts.write();
        let known = hosts.get(&member);
        if known.is_some_and(|place| place.is_fixed || place.host == host) {
            return;
        }
        let place = Place {
            host: host.to_owned(),
            is_fixed: false,
        };
        let before = hosts.insert(member, place);
        drop(hosts);
        if before.is_some() {
            self.links.lock().remove(&member);
        }
    }

    /// Where members are reached, whatever a configuration says.
    pub(crate) fn fix_hosts(&self, fixed: impl Iterator<Item = (MemberId, String)>) {
        let mut hosts = self.directory.hosts.write();
        for (member, host) in fixed {
            hosts.insert(
                member,
                Place {
                    host,
                    is_fixed: true,
                },
            );
        }
    }

    /// Hosts that are reached by another address from here.
    pub(crate) fn set_detours(&self, detours: &BTreeMap<String, String>) {
        self.directory.detours.write().clone_from(detours);
    }

    /// By which address a host is reached.
    pub(crate) fn detour(&self, host: &str) -> String {
        self.directory.detour(host)
    }

    /// By which address a member is reached.
    pub(crate) fn address_of(&self, member: MemberId) -> Option<String> {
        self.directory.address_of(member)
    }

    pub(crate) fn knows(&self, member: MemberId) -> bool {
        self.directory.hosts.read().contains_key(&member)
    }

    /// Ends all links.
    pub(crate) fn close(&self) {
        self.links.lock().clear();
        *self.directory.introduce.write() = None;
        *self.directory.report.write() = None;
    }
}

impl Transport for Peers {
    fn send(&self, to: MemberId, packet: Vec<u8>) {
        let Some(runtime) = &self.runtime else { return };
        let mut links = self.links.lock();
        let link = links.entry(to).or_insert_with(|| {
            let (queue, packets) = mpsc::channel(QUEUE_PACKETS_MAX);
            let queued_bytes = Arc::new(AtomicUsize::new(0));
            let link = Link::new(to, self.directory.clone(), queued_bytes.clone());
            runtime.spawn(link.run(packets));
            Queue {
                packets: queue,
                queued_bytes,
            }
        });
        let bytes = packet.len();
        // One packet may go over the limit, so that each has a chance.
        if link.queued_bytes.load(Ordering::Relaxed) >= QUEUE_BYTES_MAX {
            return;
        }
        link.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if link.packets.try_send(packet).is_err() {
            link.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Sends one command on a connection and reads the reply.
pub(crate) async fn ask(stream: &mut TcpStream, command: &DocBuf) -> io::Result<DocBuf> {
    stream.write_all(&message(0, command)).await?;
    let mut header = [0; HEADER_SIZE];
    stream.read_exact(&mut header).await?;
    let length = usize::try_from(Header::parse(&header).length).unwrap_or(0);
    // Flags and the section's kind, then a document.
    if !(HEADER_SIZE + 10..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::Error::other("the reply is malformed"));
    }
    let mut rest = vec![0; length - HEADER_SIZE];
    stream.read_exact(&mut rest).await?;
    DocBuf::from_bytes(rest.split_off(5)).map_err(io::Error::other)
}

pub(super) fn message(flags: u32, command: &DocBuf) -> Vec<u8> {
    let body = command.as_bytes();
    let length = HEADER_SIZE + 5 + body.len();
    let header = Header {
        length: length as i32,
        request_id: 1,
        response_to: 0,
        opcode: OP_MSG,
    };
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.push(0);
    bytes.extend_from_slice(body);
    bytes
}

/// The commands that carry packets, few of them where packets are short.
pub(super) fn replicate_commands(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut commands = Vec::new();
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut bytes = 0;
    for packet in packets {
        let mut rest = packet.as_slice();
        while bytes + rest.len() > PART_BYTES_MAX {
            let (now, later) = rest.split_at((PART_BYTES_MAX - bytes).min(rest.len()));
            parts.push(now);
            commands.push(replicate_command(&parts, !later.is_empty()));
            parts.clear();
            bytes = 0;
            rest = later;
        }
        if !rest.is_empty() {
            bytes += rest.len();
            parts.push(rest);
        }
    }
    if !parts.is_empty() {
        commands.push(replicate_command(&parts, false));
    }
    commands
}

fn replicate_command(parts: &[&[u8]], more: bool) -> Vec<u8> {
    let mut writer = DocWriter::new();
    writer.append(REPLICATE, 1).begin_array("parts");
    for bytes in parts {
        writer.push(ValueRef::Binary { subtype: 0, bytes });
    }
    writer.end().append("more", more).append("$db", "admin");
    message(FLAG_MORE_TO_COME, &writer.finish())
}

/// What has arrived of a packet that comes in parts; kept with its connection.
#[derive(Default)]
pub(crate) struct Incoming {
    begun: Mutex<Vec<u8>>,
}

impl Incoming {
    /// Calls `take` for each packet that is complete.
    pub(crate) fn receive(
        &self,
        request: &Request,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let body = request.body();
        let parts = body
            .get_array("parts")
            .ok_or_else(|| malformed(REPLICATE))?;
        let more = body.get("more") == Some(ValueRef::Boolean(true));
        let mut begun = self.begun.lock();
        let mut parts = parts.iter().peekable();
        while let Some(part) = parts.next() {
            let ValueRef::Binary { bytes, .. } = part else {
                return Err(malformed(REPLICATE));
            };
            let complete = !more || parts.peek().is_some();
            if !complete {
                if begun.len() + bytes.len() > PACKET_BYTES_MAX {
                    begun.clear();
                    return Err(Error::new(Code::INVALID_LENGTH, "a packet is too long"));
                }
                begun.extend_from_slice(bytes);
            } else if begun.is_empty() {
                take(bytes);
            } else {
                begun.extend_from_slice(bytes);
                take(&std::mem::take(&mut *begun));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn packets_arrive_whole_whatever_their_length() {
        let check = |lengths: &[usize]| {
            let sent: Vec<Vec<u8>> = lengths
                .iter()
                .zip(1u8..)
                .map(|(length, fill)| vec![fill; *length])
                .collect();
            let incoming = Incoming::default();
            let mut received = Vec::new();
            for command in replicate_commands(&sent) {
                let request = wire::parse_request(Bytes::from(command)).expect("a request");
                incoming
                    .receive(&request, |packet| received.push(packet.to_vec()))
                    .expect("well-formed");
            }
            assert!(received == sent, "{lengths:?}");
        };
        check(&[1]);
        check(&[10, 20, 30]);
        check(&[PART_BYTES_MAX, 1]);
        check(&[PART_BYTES_MAX + 1, 5]);
        check(&[7, PART_BYTES_MAX - 7, 9]);
        check(&[7, 3 * PART_BYTES_MAX, 9, PART_BYTES_MAX]);
    }

    #[test]
    fn an_introduction_survives_its_command() {
        let introduction = Introduction {
            set: "flock".to_owned(),
            replica_set_id: Some(ObjectId([7; 12])),
            to: MemberNumber::first(0),
            from: MemberNumber { id: 2, life: 7 },
            host: "tern:27019".to_owned(),
            newcomer: true,
        };
        let command = introduction.to_command();
        assert_eq!(Introduction::parse(command.as_doc()), Ok(introduction));
        let other = DocWriter::new().with(JOIN, 1).with("set", "flock").finish();
        assert!(Introduction::parse(other.as_doc()).is_err());
    }
}
