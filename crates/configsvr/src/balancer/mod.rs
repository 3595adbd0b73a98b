//! The balancer: moves ranges so that shards have what they should (`cluster::balance` says which).
//!
//! ```text
//!   asleep ── balancerStart, removeShard, a zone ──► round: sizes, proposals, moves at once ─► pause ─► round …
//! ```
//!
//! It is **off until somebody starts it** (`balancerStart`); MongoDB's is on. Moves have to prove themselves
//! first. Off or on, it empties shards that are being removed. While it has nothing to do it sends nothing.
//!
//! What could not be moved is remembered, so that other ranges and other shards come first; when nothing else is
//! left to be tried, it is forgotten and tried again after the pause.
//!
//! Sizes come from `collStats` of every shard. A chunk that is taken for larger than the chunk size, by what
//! its shard has and in how many chunks, gives a piece of that size; the commit of the move cuts it off.

mod command;
mod piece;

pub(crate) use command::{collection_status, set, status};

use crate::documents::{CollectionEntry, Fields, SHARDS};
use crate::error::Fault;
use crate::moves::{self, command::Wanted};
use crate::queue::Patience;
use crate::state::State;
use crate::tenure::Tenure;
use crate::zones;
use cluster::balance::{Busy, Load, Proposal, Reason, Refused, Zone, choose};
use cluster::routing::{RoutingTable, ShardId};
use model::bson::{Doc, DocWriter, ValueRef};
use model::number::Number;
use model::{Code, Namespace};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Between two rounds: if the last one moved something, and if not.
const PAUSE_BUSY: Duration = Duration::from_millis(500);
const PAUSE_IDLE: Duration = Duration::from_secs(10);
/// MongoDB's default, in bytes.
pub(super) const CHUNK_BYTES: u64 = 128 << 20;

/// What the tasks of one tenure share about balancing.
#[derive(Default)]
pub(crate) struct Balancer {
    woken: Notify,
    rounds: AtomicI64,
    in_round: AtomicBool,
    /// What was tried in vain.
    refused: Mutex<BTreeMap<Namespace, Refused>>,
}

impl Balancer {
    /// Something may have to move.
    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }
}

/// Runs until the tenure is over.
pub(crate) async fn run(tenure: Arc<Tenure>) -> Result<(), Fault> {
    loop {
        let pause = match tenure.with_state(has_work) {
            false => None,
            true => {
                tenure.balancer.in_round.store(true, Ordering::Release);
                let moved = round(&tenure).await;
                tenure.balancer.in_round.store(false, Ordering::Release);
                tenure.balancer.rounds.fetch_add(1, Ordering::AcqRel);
                match moved {
                    Ok(0) => {
                        tenure.balancer.refused.lock().clear();
                        Some(PAUSE_IDLE)
                    }
                    Ok(_) => Some(PAUSE_BUSY),
                    Err(fault) => {
                        tracing::info!("a round of the balancer ended early: {fault}");
                        Some(PAUSE_IDLE)
                    }
                }
            }
        };
        let slept = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tenure.ended() => return Ok(()),
            () = tenure.balancer.woken.notified() => {}
            () = slept => {}
        }
    }
}

fn has_work(state: &State) -> bool {
    state.balances || state.authority.shards().any(|(_, usable)| !usable)
}

/// How many moves were tried.
async fn round(tenure: &Arc<Tenure>) -> Result<usize, Fault> {
    let (balances, collections) = {
        let state = tenure.state().await?;
        let names: Vec<Namespace> = state.collections.keys().cloned().collect();
        (state.balances, names)
    };
    let mut busy = Busy::new(moves::command::moves_per_shard(tenure).await?);
    for (from, to) in tenure.moves.ends() {
        busy.take(&from, &to);
    }
    let mut moving = JoinSet::new();
    for name in collections {
        let view = match View::of(tenure, &name).await {
            Ok(Some(view)) => view,
            Ok(None) => continue,
            Err(_) if tenure.is_over() => break,
            // A shard that does not answer is in the way of this collection, not of others.
            Err(fault) => {
                tracing::info!("the balancer passes {name} over: {fault}");
                continue;
            }
        };
        let refused = tenure.balancer.refused.lock().get(&name).cloned();
        for proposal in view.proposals(&refused.unwrap_or_default(), &mut busy) {
            let may = match proposal.reason {
                Reason::Draining => true,
                Reason::ZoneViolation | Reason::Imbalance => balances && view.may_be_balanced(),
            };
            if !may {
                busy.give_back(&proposal);
                continue;
            }
            let range = piece::of(tenure, &view, &proposal).await;
            let tried = (name.clone(), (range.min.clone(), proposal.to.clone()));
            let wanted = Wanted::exactly(name.clone(), range, &proposal.to);
            let here = tenure.clone();
            moving.spawn(async move {
                let moved = moves::run(&here, wanted, Patience::usual()).await;
                (moved, tried)
            });
        }
    }
    let mut ended_moves = 0;
    while let Some(ended) = moving.join_next().await {
        ended_moves += 1;
        match ended {
            Ok((Ok(_), _)) => {}
            // Nothing is wrong with the range: its database was not to be had.
            Ok((Err(fault), (name, _))) if fault.code() == Some(Code::LOCK_BUSY) => {
                tracing::info!("the balancer could not move a range of {name}: {fault}");
            }
            Ok((Err(fault), (name, what))) => {
                tracing::info!("the balancer could not move a range of {name}: {fault}");
                let mut refused = tenure.balancer.refused.lock();
                refused.entry(name).or_default().insert(what);
            }
            Err(ended) => tracing::warn!("a move of the balancer did not end: {ended}"),
        }
    }
    Ok(ended_moves)
}

/// A collection as the balancer sees it.
pub(super) struct View {
    entry: CollectionEntry,
    table: RoutingTable,
    loads: Vec<Load>,
    /// Documents by shard.
    counts: BTreeMap<ShardId, u64>,
    zones: Vec<Zone>,
}

impl View {
    /// `None` if it is not sharded any more.
    pub(super) async fn of(tenure: &Tenure, name: &Namespace) -> Result<Option<View>, Fault> {
        let known = {
            let state = tenure.state().await?;
            let sharded = state.lookup(name)?;
            sharded.map(|(entry, table)| (entry.clone(), table.clone()))
        };
        let Some((entry, table)) = known else {
            return Ok(None);
        };
        let (mut loads, mut counts) = (Vec::new(), BTreeMap::new());
        for doc in tenure.store.find(SHARDS, Doc::EMPTY, Doc::EMPTY).await? {
            let fields = Fields::of(SHARDS, doc.as_doc());
            let shard = ShardId::new(fields.text("_id")?);
            let owns = table.shards().iter().any(|part| part.shard == shard);
            let (bytes, count) = match owns {
                true => size_of(tenure, &shard, name).await?,
                false => (0, 0),
            };
            let tags = doc.as_doc().get_array("tags");
            let zones = tags.into_iter().flat_map(|tags| tags.iter());
            let zones = zones.filter_map(|tag| match tag {
                ValueRef::String(tag) => Some(tag.to_owned()),
                _ => None,
            });
            counts.insert(shard.clone(), count);
            loads.push(Load {
                shard,
                bytes,
                draining: fields.flag("draining"),
                zones: zones.collect(),
            });
        }
        let zones = zones::of_collection(tenure, name, &table.pattern).await?;
        Ok(Some(View {
            entry,
            table,
            loads,
            counts,
            zones,
        }))
    }

    fn proposals(&self, refused: &Refused, busy: &mut Busy) -> Vec<Proposal> {
        let zones = &self.zones;
        choose(&self.table, &self.loads, zones, CHUNK_BYTES, refused, busy)
    }

    fn may_be_balanced(&self) -> bool {
        let is = |name: &str, value: bool| {
            self.entry.document.get(name) == Some(ValueRef::Boolean(value))
        };
        !is("noBalance", true) && !is("permitMigrations", false)
    }
}

/// Bytes and documents of a collection that a shard owns: what moved away and is still there would move
/// more after it.
async fn size_of(tenure: &Tenure, shard: &ShardId, name: &Namespace) -> Result<(u64, u64), Fault> {
    let command = DocWriter::new()
        .with("collStats", name.collection())
        .finish();
    let stats = tenure.ask(shard, name.database(), command.as_doc()).await?;
    let number = |field: &str| {
        let number = stats.get(field).and_then(Number::of);
        number.map_or(0, |number| number.to_f64() as u64)
    };
    let orphans = number("numOrphanDocs");
    let bytes = number("size").saturating_sub(orphans * number("avgObjSize"));
    Ok((bytes, number("count").saturating_sub(orphans)))
}
