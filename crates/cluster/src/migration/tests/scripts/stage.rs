//! The stage of a script: the donor on A, the recipient on B, the authority, a client, and all that was ever sent.

mod authority;
mod recipient;

use crate::authority::{Answer, Authority, Catalog, Expected, OperationId, Outcome, Request};
use crate::authority::{Decision, Refusal};
use crate::migration::donor::{self, Donor};
use crate::migration::recipient::{
    Event as RecipientEvent, Phase as RecipientPhase, Recipient, Standing,
};
use crate::migration::*;
use crate::routing::{History, RoutingTable, ShardId, initial_chunks};
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{Incarnation, PlacementVersion};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::transitions;
use super::words::{authority_says, donor_state, message_text, name_of, recipient_state};

const NAME: &str = "fleet.birds";
const MOVE: OperationId = Uuid([1; 16]);
const NEXT_MOVE: OperationId = Uuid([2; 16]);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Party {
    Donor,
    Recipient,
    Authority,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Sent(Send),
    /// The authority's answer.
    Answer(Result<Outcome, Refused>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    CatalogChanged { known: u64, now: u64 },
    Otherwise(String),
}

struct OnItsWay {
    from: Party,
    to: Party,
    message: Message,
}

/// When a primary dies in the middle of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Death {
    None,
    /// The document is what it was, and nothing was sent.
    BeforeItIsWritten,
    /// The document is the new one; nothing was sent.
    BeforeItIsSent,
}

/// What a shard has of the range beside the documents of the move.
#[derive(Default)]
struct Stored {
    owns: bool,
    /// Documents of the range, which are also the writes in its log.
    documents: u64,
    /// Something is not what it was at the donor.
    damaged: bool,
    /// What is stored is to be removed.
    dead: bool,
}

impl Stored {
    fn digest(&self) -> Digest {
        Digest {
            documents: self.documents,
            sum: u128::from(self.documents) << 1 | u128::from(self.damaged),
        }
    }
}

pub(super) struct Stage {
    authority: Authority<&'static str>,
    now: u32,
    a: Stored,
    b: Stored,
    donor: Option<Donor>,
    recipient: Option<Recipient>,
    /// The newest version that B has learned, and had learned when the recipient began.
    known: PlacementVersion,
    known_at_begin: PlacementVersion,
    sent: Vec<OnItsWay>,
    written: u64,
    /// The range is C's by now.
    has_gone_on: bool,
    /// Which transitions were taken: phase, event, and what came of it.
    pub(super) taken: BTreeSet<(String, String, String)>,
}

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

pub(super) fn range() -> KeyRange {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = ShardKeyPattern::parse(pattern.as_doc()).unwrap();
    let bound = |key: i32| {
        let bound = DocWriter::new().with("k", key).finish();
        KeyBound::new(&pattern.key_of_bound(bound.as_doc()).unwrap())
    };
    KeyRange::new(bound(0), bound(10))
}

fn table() -> RoutingTable {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap());
    let KeyRange { min, max } = range();
    let chunks = initial_chunks(&pattern, &[min, max], &[shard("A")], ClusterTime::ZERO);
    let incarnation = Incarnation {
        epoch: ObjectId([1; 12]),
        began: ClusterTime::ZERO,
    };
    RoutingTable::full(Uuid([9; 16]), incarnation, pattern, chunks).unwrap()
}

impl Stage {
    pub(super) fn new() -> Stage {
        let mut authority = Authority::default();
        for name in ["A", "B", "C"] {
            authority.set_shard(shard(name), true);
        }
        let known = table().version();
        authority.restore(NAME, table(), Catalog::default());
        Stage {
            authority,
            now: 10,
            a: Stored {
                owns: true,
                documents: 2,
                ..Stored::default()
            },
            b: Stored::default(),
            donor: None,
            recipient: None,
            known,
            known_at_begin: known,
            sent: Vec::new(),
            written: 2,
            has_gone_on: false,
            taken: BTreeSet::new(),
        }
    }

    pub(super) fn states(&self) -> String {
        let donor = donor_state(self.donor.as_ref());
        let recipient = recipient_state(self.recipient.as_ref());
        format!("donor: {donor}; recipient: {recipient}")
    }

    pub(super) fn range_is_empty(&mut self) -> String {
        (self.a.documents, self.written) = (0, 0);
        "A: holds nothing".to_owned()
    }

    fn send(&mut self, from: Party, messages: Vec<Message>) {
        for message in messages {
            let to = match &message {
                Message::Sent(Send::Recipient(_)) => Party::Recipient,
                Message::Sent(Send::Donor(_)) => Party::Donor,
                Message::Sent(Send::Authority(_)) => Party::Authority,
                Message::Answer(_) => unreachable!("answers go to whoever asked"),
            };
            self.sent.push(OnItsWay { from, to, message });
        }
    }

    /// The latest message of that name to a party, or the first one; and who sent it.
    pub(super) fn find(
        &self,
        to: Option<Party>,
        name: &str,
        is_first: bool,
    ) -> Option<(Party, Message)> {
        let is_meant =
            |sent: &&OnItsWay| to.is_none_or(|to| sent.to == to) && name_of(&sent.message) == name;
        let mut all = self.sent.iter().filter(is_meant);
        let found = match is_first {
            true => all.next(),
            false => all.next_back(),
        };
        found.map(|sent| (sent.from, sent.message.clone()))
    }

    fn next_time(&mut self) -> ClusterTime {
        self.now += 1;
        ClusterTime::new(self.now, 0)
    }

    fn catalog(&self) -> Catalog {
        self.authority.catalog(&NAME).unwrap_or_default()
    }

    // The donor.

    pub(super) fn donor_begins(&mut self) -> String {
        let moved = Move {
            id: MOVE,
            range: range(),
            from: shard("A"),
            to: shard("B"),
            catalog: self.catalog().version,
        };
        let begun = Donor::begin(moved, self.a.documents);
        self.donor_becomes(begun, Death::None)
    }

    pub(super) fn donor(&mut self, event: donor::Event, death: Death) -> String {
        let Some(before) = self.donor.clone() else {
            return "donor: ignored, there is no such move".to_owned();
        };
        let stepped = before.step(event.clone());
        let after = match &stepped {
            None => "ignored".to_owned(),
            Some(to) => donor_state(to.next.as_ref()),
        };
        self.taken.insert((
            format!("donor {}", donor_state(Some(&before))),
            transitions::donor_event(&event),
            transitions::kind(&after),
        ));
        match stepped {
            None => format!("donor: ignored in {}", donor_state(Some(&before))),
            Some(transition) => self.donor_becomes(transition, death),
        }
    }

    fn donor_becomes(&mut self, transition: Transition<Donor>, death: Death) -> String {
        if death == Death::BeforeItIsWritten {
            return "donor: (nothing is written, nothing is sent)".to_owned();
        }
        let gave_away = |donor: &Option<Donor>| donor.as_ref().is_some_and(Donor::has_given_away);
        let before = gave_away(&self.donor);
        self.donor = transition.next;
        if gave_away(&self.donor) && !before {
            // In the same entry.
            (self.a.owns, self.a.dead) = (false, true);
        }
        let state = donor_state(self.donor.as_ref());
        format!(
            "donor: {state} {}",
            self.sends(Party::Donor, transition.send, death)
        )
    }

    fn sends(&mut self, from: Party, messages: Vec<Send>, death: Death) -> String {
        let messages: Vec<Message> = messages.into_iter().map(Message::Sent).collect();
        let texts: Vec<String> = messages.iter().map(message_text).collect();
        match death {
            Death::BeforeItIsSent => "(nothing is sent)".to_owned(),
            Death::None | Death::BeforeItIsWritten => {
                self.send(from, messages);
                format!("[{}]", texts.join("; "))
            }
        }
    }

    pub(super) fn drained(&self) -> donor::Event {
        donor::Event::Drained {
            at: self.a.documents,
            digest: self.a.digest(),
        }
    }

    /// What the authority says when it is asked which catalog stands, if one does.
    pub(super) fn catalog_stands(&self) -> Option<donor::Event> {
        let catalog = self.catalog().standing()?;
        Some(donor::Event::CatalogStands { catalog })
    }

    pub(super) fn donor_hears(&mut self, message: Message, death: Death) -> Result<String, String> {
        let event = match message {
            Message::Sent(Send::Donor(message)) => match message {
                ToDonor::Ready { catalog, .. } => donor::Event::RecipientReady { catalog },
                ToDonor::Cannot { .. } => donor::Event::RecipientCannot,
                ToDonor::Released { .. } => donor::Event::RecipientReleased,
                ToDonor::Progress { .. } => {
                    return Err("progress is looked at by the shell only".to_owned());
                }
            },
            Message::Answer(Ok(outcome)) => donor::Event::Decided(outcome),
            Message::Answer(Err(Refused::CatalogChanged { known, now })) => {
                donor::Event::CatalogChanged { known, now }
            }
            Message::Answer(Err(Refused::Otherwise(_))) => donor::Event::CommitRefused,
            Message::Sent(Send::Recipient(_) | Send::Authority(_)) => {
                return Err("that is not for the donor".to_owned());
            }
        };
        Ok(self.donor(event, death))
    }

    // What else happens.

    pub(super) fn catalog_changes(&mut self, changes: bool) -> String {
        let version = self.catalog().version + 1;
        self.authority
            .set_catalog(&NAME, Catalog { version, changes });
        match changes {
            true => format!("catalog: {version}, changing"),
            false => format!("catalog: {version} stands"),
        }
    }

    pub(super) fn b_is_emptied(&mut self) -> String {
        self.authority.set_shard(shard("B"), false);
        "authority: B is to get nothing more".to_owned()
    }

    /// B gives the range to C, in another move.
    pub(super) fn range_goes_on(&mut self) -> Result<String, String> {
        let expected = Expected {
            incarnation: table().incarnation,
            catalog: None,
        };
        let request = Request::Move {
            expected,
            range: range(),
            from: shard("B"),
            to: shard("C"),
            history: History::default(),
        };
        let now = self.next_time();
        match self.authority.decide(NEXT_MOVE, &NAME, request, now) {
            Ok(Answer::Write(decision)) => {
                let outcome = decision.outcome;
                self.apply(decision);
                if let Outcome::Committed { version, .. } = outcome {
                    self.known = version;
                }
                (self.b.owns, self.b.dead) = (false, true);
                self.has_gone_on = true;
                Ok(authority_says(&Ok(outcome), true))
            }
            other => Err(format!("{other:?}")),
        }
    }

    pub(super) fn dead_copy_is_removed(&mut self) -> String {
        if self.b.owns || !self.b.dead {
            return "B: nothing is dead".to_owned();
        }
        self.b = Stored::default();
        "B: holds nothing".to_owned()
    }

    pub(super) fn copy_is_damaged(&mut self) -> String {
        self.b.damaged = true;
        "B: holds another document".to_owned()
    }

    /// A client writes a document, or reads all. ⚑ No script may show two shards that accept writes, nor a read that
    /// misses what was acknowledged.
    pub(super) fn client(&mut self, writes: bool) -> String {
        let blocks = match writes {
            true => Donor::blocks_writes,
            false => Donor::blocks_reads,
        };
        let a_serves = self.a.owns && !self.donor.as_ref().is_some_and(blocks);
        let b_serves = self.b.owns;
        assert!(!(a_serves && b_serves), "two shards serve the range");
        let (name, stored) = match (a_serves, b_serves) {
            (true, _) => ("A", &mut self.a),
            (_, true) => ("B", &mut self.b),
            (false, false) if self.has_gone_on => return "client: C serves it".to_owned(),
            (false, false) => return "client: waits".to_owned(),
        };
        if writes {
            stored.documents += 1;
            self.written += 1;
        }
        assert_eq!(stored.documents, self.written, "a read on {name}");
        match writes {
            true => format!("client: {name} has written it"),
            false => format!("client: finds {} documents on {name}", stored.documents),
        }
    }
}
