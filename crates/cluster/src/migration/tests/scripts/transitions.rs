//! What donor and recipient can do at all: every phase, and every event in it.
//!
//! A transition is a phase, an event and the phase that follows. Those that are taken are to be in some script; and
//! where an event is taken or ignored in one phase, by what it says, both are.

use super::stage::range;
use super::words::{donor_state, recipient_state};
use crate::authority::Outcome;
use crate::migration::donor::{self, Donor};
use crate::migration::recipient::{self, Recipient, Standing};
use crate::migration::{Digest, Move, ToRecipient};
use crate::routing::ShardId;
use model::bson::ObjectId;
use model::ids::Uuid;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use std::collections::BTreeSet;

type Transitions = BTreeSet<(String, String, String)>;

const IGNORED: &str = "ignored";

/// What the protocol has an answer for although it cannot happen on this stage.
const IN_NO_SCRIPT: [(&str, &str); 2] = [
    // Contents are compared of what is being received: it would have to abort meanwhile.
    ("recipient Aborted", "finish"),
    // Outcomes are final: nobody is told that a move is aborted by which somebody came to be the owner.
    ("recipient Owner", "release aborted"),
];

/// A state's name without what it carries.
pub(super) fn kind(state: &str) -> String {
    state.split(',').next().unwrap_or(state).to_owned()
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Committed { .. } => "committed",
        Outcome::Aborted => "aborted",
    }
}

pub(super) fn donor_event(event: &donor::Event) -> String {
    match event {
        donor::Event::AlmostCaughtUp => "almost caught up".to_owned(),
        donor::Event::Drained { .. } => "drained".to_owned(),
        donor::Event::RecipientReady { .. } => "recipient ready".to_owned(),
        donor::Event::RecipientCannot => "recipient cannot".to_owned(),
        donor::Event::CatalogStands { .. } => "catalog stands".to_owned(),
        donor::Event::CatalogChanged { .. } => "catalog changed".to_owned(),
        donor::Event::Decided(decided) => format!("decided {}", outcome(*decided)),
        donor::Event::CommitRefused => "commit refused".to_owned(),
        donor::Event::Abort => "abort".to_owned(),
        donor::Event::RecipientReleased => "recipient released".to_owned(),
        donor::Event::Timer => "timer".to_owned(),
    }
}

pub(super) fn recipient_event(event: &recipient::Event) -> String {
    match event {
        recipient::Event::Copied { .. } => "copied".to_owned(),
        recipient::Event::Message(ToRecipient::Receive { .. }) => "receive".to_owned(),
        recipient::Event::Message(ToRecipient::Finish { .. }) => "bare finish".to_owned(),
        recipient::Event::Message(ToRecipient::Release { outcome: it, .. }) => {
            format!("release {}", outcome(*it))
        }
        recipient::Event::Aligned { .. } => "aligned".to_owned(),
        recipient::Event::Finish { .. } => "finish".to_owned(),
        recipient::Event::Decided(decided) => format!("decided {}", outcome(*decided)),
        recipient::Event::Failed => "failed".to_owned(),
        recipient::Event::Timer => "timer".to_owned(),
    }
}

fn version(major: u32) -> PlacementVersion {
    PlacementVersion {
        incarnation: Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::ZERO,
        },
        chunk: ChunkVersion::new(major, 0),
    }
}

fn moved(catalog: u64) -> Move {
    Move {
        id: Uuid([1; 16]),
        range: range(),
        from: ShardId::new("A"),
        to: ShardId::new("B"),
        catalog,
    }
}

fn committed() -> Outcome {
    Outcome::Committed {
        version: version(5),
        since: ClusterTime::new(1, 0),
    }
}

fn digest(documents: u64) -> Digest {
    Digest {
        documents,
        sum: documents.into(),
    }
}

pub(super) fn all() -> Transitions {
    let mut all = donors();
    all.extend(recipients());
    all.extend(beginnings());
    // Those that are only ever ignored are as many as there are phases and events: some of them are in scripts.
    let may_be_taken: BTreeSet<(String, String)> = all
        .iter()
        .filter(|(_, _, after)| after != IGNORED)
        .map(|(before, event, _)| (before.clone(), event.clone()))
        .collect();
    all.retain(|(before, event, after)| {
        after != IGNORED || may_be_taken.contains(&(before.clone(), event.clone()))
    });
    all.retain(|(before, event, _)| !IN_NO_SCRIPT.contains(&(before.as_str(), event.as_str())));
    all
}

fn donors() -> Transitions {
    let (at, digest) = (7, digest(2));
    let phases = [
        donor::Phase::Copying,
        donor::Phase::WritesBlocked,
        donor::Phase::ReadsBlocked,
        donor::Phase::Committed(committed()),
        donor::Phase::Aborted,
    ];
    let events = [
        donor::Event::AlmostCaughtUp,
        donor::Event::Drained { at, digest },
        donor::Event::RecipientReady { catalog: 0 },
        donor::Event::RecipientReady { catalog: 1 },
        donor::Event::RecipientCannot,
        donor::Event::CatalogStands { catalog: 1 },
        donor::Event::CatalogStands { catalog: 2 },
        donor::Event::CatalogChanged { known: 0, now: 1 },
        donor::Event::CatalogChanged { known: 1, now: 2 },
        donor::Event::Decided(committed()),
        donor::Event::Decided(Outcome::Aborted),
        donor::Event::CommitRefused,
        donor::Event::Abort,
        donor::Event::RecipientReleased,
        donor::Event::Timer,
    ];
    let mut all = Transitions::new();
    for phase in phases {
        let donor = Donor {
            moved: moved(1),
            since: 2,
            phase,
        };
        for event in &events {
            let after = match donor.step(event.clone()) {
                None => IGNORED.to_owned(),
                Some(to) => donor_state(to.next.as_ref()),
            };
            let before = format!("donor {}", donor_state(Some(&donor)));
            all.insert((before, donor_event(event), after));
        }
    }
    all
}

fn recipients() -> Transitions {
    let phases = [
        recipient::Phase::Receiving { copied: 5 },
        recipient::Phase::Ready,
        recipient::Phase::Owner,
        recipient::Phase::Aborted,
    ];
    let id = moved(1).id;
    let mut events = vec![
        recipient::Event::Copied {
            up_to: 6,
            digest: digest(2),
        },
        recipient::Event::Message(ToRecipient::Finish {
            id,
            catalog: 1,
            up_to: 5,
            digest: digest(2),
        }),
        recipient::Event::Aligned { catalog: 1 },
        recipient::Event::Failed,
        recipient::Event::Timer,
    ];
    for outcome in [committed(), Outcome::Aborted] {
        events.push(recipient::Event::Decided(outcome));
        let release = ToRecipient::Release { id, outcome };
        events.push(recipient::Event::Message(release));
    }
    for catalog in [1, 2] {
        let (moved, since) = (moved(catalog), 2);
        let receive = ToRecipient::Receive { moved, since };
        events.push(recipient::Event::Message(receive));
    }
    for (catalog, up_to, found) in [(1, 5, 2), (1, 5, 3), (1, 6, 2), (0, 5, 2)] {
        events.push(recipient::Event::Finish {
            catalog,
            up_to,
            wanted: digest(2),
            found: digest(found),
        });
    }
    let mut all = Transitions::new();
    for phase in phases {
        for known in [version(4), version(6)] {
            let recipient = Recipient {
                moved: moved(1),
                aligned: Some(1),
                phase,
            };
            for event in &events {
                let after = match recipient.step(event.clone(), known) {
                    None => IGNORED.to_owned(),
                    Some(to) => recipient_state(to.next.as_ref()),
                };
                let before = format!("recipient {}", recipient_state(Some(&recipient)));
                all.insert((kind(&before), recipient_event(event), kind(&after)));
            }
        }
    }
    all
}

fn beginnings() -> Transitions {
    let standings = [Standing::Owns, Standing::HoldsDeadData, Standing::Empty];
    let begins = standings.map(|standing| {
        let after = match Recipient::begin(moved(1), 2, standing) {
            None => IGNORED.to_owned(),
            Some(begun) => kind(&recipient_state(begun.next.as_ref())),
        };
        let event = format!("begin, {standing:?}");
        ("recipient none".to_owned(), event, after)
    });
    begins.into_iter().collect()
}
