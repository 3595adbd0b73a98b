//! Opening a log: find its segments and the member's file, cut a torn tail, and bring
//! log and state into line.
//!
//! ```text
//!   list ─► headers, contiguous? ─► last segment: walk, search behind ─► repair, sync
//!        ─► state ahead? record a gap, or begin anew after an installed state
//!        ─► state behind? the loop applies the rest once it knows that it is committed
//! ```
//!
//! - Only the last segment is read whole. Earlier ones were complete when it was made;
//!   their entries are checked whenever they are read.
//! - ⚑ What was found, names and bytes, is made stable before any of it is applied: the
//!   process may have died between write and sync. Bytes are even written again, because
//!   after a failed sync the kernel shows bytes that it no longer means to write.
//! - ⚑ Everything behind the end is overwritten with zeros. Whole entries there would be
//!   reconnected to the log by an entry of the same length as the torn one before them.
//!   Torn ones could become whole: if the next entry in their place has some blocks in
//!   common with them, and the power goes again when only those have been written.
//! - ⚑ If the state is ahead of the log (entries were applied before their sync, and a
//!   power cut took them from the log but not from the state), the state is synced, so
//!   that it cannot fall back behind that point again, and a new segment begins after
//!   it. Its header records the gap, and reading across it is an error. Only a sole
//!   member applies before its sync; with others, a log that is behind is damaged.
//! - A state that was installed from another member is ahead of the log, too: the member's
//!   file names it beforehand. The log begins anew behind it; see `install.rs`.
//! - All of this can be cut off and done again: it changes nothing that was whole.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use model::time::ClusterTime;

use crate::append::LogEnd;
use crate::disk::Fill;
use crate::entry::{Entry, EntryKind, LogPosition, Term};
use crate::error::Error;
use crate::install::begin_after_installed;
use crate::log_state::{LogState, SPARE_PREFIX, Spare};
use crate::member::{Configuration, ConfigurationChange, MemberStep};
use crate::member_file::{MEMBER_FILE, MemberFile, MemberState};
use crate::options::Beginning;
use crate::segment::{Found, HEADER_BYTES, Segment, SegmentHeader};
use crate::state_machine::{StateMachine, Syncer};

/// Spare files beyond this are removed.
pub(crate) const SPARES_MAX: usize = 2;

/// So much of the log is looked through at a time.
const READ_BYTES: usize = 1 << 20;

/// The first entry of every log: the members it began with. It has the same bytes
/// everywhere, so that whoever joins later learns of them from the log.
const FIRST_TERM: Term = Term::new(1);
const FIRST_TIME: ClusterTime = ClusterTime::new(0, 1);

pub(crate) struct Recovered {
    pub end: LogEnd,
    pub member: MemberFile,
}

/// Finds out where the log ends and makes that stable.
pub(crate) fn recover<S: StateMachine>(
    log: &LogState,
    state: &S,
    syncer: &mut Syncer,
) -> Result<Recovered, Error> {
    let segments = find_segments(log)?;
    // The names that were found may be those that a dying process had just given.
    log.disk
        .sync_directory()
        .map_err(Error::disk("syncing the log's directory"))?;
    let applied = state.applied();
    let member = open_member(log, segments.is_empty(), applied)?;
    let installed = member
        .state
        .installed
        .filter(|(position, _)| *position == applied);
    let mut end = if segments.is_empty() {
        let untouched = member.state.vote.is_none() && member.state.term <= FIRST_TERM;
        match installed {
            Some((_, term)) => begin_after_installed(log, applied, term, state.applied_time())?,
            None if applied == LogPosition::BEFORE_FIRST && untouched => create(log)?,
            None => return Err(Error::LogMissing { applied }),
        }
    } else {
        check_row(&segments)?;
        *log.segments.write() = segments;
        log.find_unbroken_first();
        repair_end(&log.active())?
    };
    log.set_appended(end.last, end.offset);
    match installed {
        Some((_, term)) if applied > end.last || log.term_at(applied).ok() != Some(term) => {
            end = begin_after_installed(log, applied, term, state.applied_time())?;
        }
        _ if applied > end.last => {
            if !member.state.configuration.is_sole(log.options.member) {
                return Err(Error::Corrupt {
                    file: log.active().name.clone(),
                    detail: format!(
                        "the log ends at {}, but the state contains entries up to {applied}",
                        end.last
                    ),
                });
            }
            end = record_gap(log, &end, applied, state.applied_time(), syncer)?;
        }
        _ => {}
    }
    check_reaches(log, applied)?;
    Ok(Recovered { end, member })
}

fn open_member(log: &LogState, is_new: bool, applied: LogPosition) -> Result<MemberFile, Error> {
    let options = &log.options;
    let disk = &*log.disk;
    if let Some(found) = MemberFile::open(disk, options.group, options.member)? {
        return Ok(found);
    }
    if !is_new {
        return Err(Error::Corrupt {
            file: MEMBER_FILE.to_owned(),
            detail: "it is missing".to_owned(),
        });
    }
    if applied > LogPosition::BEFORE_FIRST {
        return Err(Error::LogMissing { applied });
    }
    let voters = match &options.beginning {
        Beginning::Voters(voters) => voters.clone(),
        Beginning::Joining => Vec::new(),
    };
    let has_members = !voters.is_empty();
    let state = MemberState {
        term: if has_members {
            FIRST_TERM
        } else {
            Term::new(0)
        },
        vote: None,
        configuration: Configuration {
            voters,
            ..Configuration::default()
        },
        configuration_position: LogPosition::new(u64::from(has_members)),
        installed: None,
    };
    MemberFile::create(disk, options.group, options.member, state)
}

/// What a log begins with, if this member was there from the beginning. (One that was
/// about to install another member's state knows of members, too.)
pub(crate) fn first_entry(state: &MemberState) -> Option<Entry> {
    let configuration = &state.configuration;
    let from_beginning = !configuration.voters.is_empty() && state.installed.is_none();
    from_beginning.then(|| Entry {
        position: LogPosition::new(1),
        term: FIRST_TERM,
        time: FIRST_TIME,
        wall_ms: 0,
        kind: EntryKind::Configuration(ConfigurationChange {
            steps: configuration
                .voters
                .iter()
                .map(|voter| MemberStep::Voter(*voter))
                .collect(),
        }),
        payload: bytes::Bytes::new(),
    })
}

/// How far the log is committed for certain, although that is not kept.
///
/// ⚑ A change of members is proposed only when the one before it has been applied. So a log that holds two of
/// them says of the first that it is committed, and the member must not stand for election before
/// it has carried it out: with members of two changes ago, it could be elected by a majority that nobody else
/// counts.
pub(crate) fn committed_for_certain(
    log: &LogState,
    member: &MemberState,
    applied: LogPosition,
) -> Result<LogPosition, Error> {
    // Alone it has carried out whatever it has acknowledged.
    if member.configuration.is_sole(log.options.member) {
        return Ok(applied);
    }
    let (mut certain, mut change) = (applied, None);
    let mut reached = applied.max(log.unbroken_first().previous());
    while reached < log.appended() {
        let entries = log.read_until(reached, log.appended(), READ_BYTES);
        let entries = entries.map_err(|error| Error::Corrupt {
            file: log.active().name.clone(),
            detail: error.to_string(),
        })?;
        let Some(newest) = entries.last() else { break };
        reached = newest.position;
        for entry in &entries {
            if matches!(entry.kind, EntryKind::Configuration(_))
                && let Some(before) = change.replace(entry.position)
            {
                certain = before;
            }
        }
    }
    Ok(certain)
}

/// What the state needs next must be in the log.
fn check_reaches(log: &LogState, applied: LogPosition) -> Result<(), Error> {
    let next = log.unbroken_first();
    if applied.next() >= next {
        return Ok(());
    }
    let first = log.first();
    if applied.next() < first {
        return Err(Error::StateTooOld { applied, first });
    }
    Err(Error::Corrupt {
        file: "the state machine".to_owned(),
        detail: format!(
            "it holds entries up to {applied}, but had synced up to {}, and some in between are not in the log",
            next.previous()
        ),
    })
}

fn find_segments(log: &LogState) -> Result<Vec<Arc<Segment>>, Error> {
    let mut segments = Vec::new();
    let mut names = log.disk.list().map_err(Error::disk("listing the log"))?;
    names.sort();
    for name in names {
        let Some(stem) = name.strip_suffix(".seg") else {
            continue;
        };
        if stem.starts_with("log-") {
            let file = log.disk.open(&name);
            let file = file.map_err(Error::disk(format!("opening {name}")))?;
            segments.push(Arc::new(Segment::open(&name, file, log.options.group)?));
        } else if let Some(number) = stem.strip_prefix(SPARE_PREFIX) {
            if let Ok(number) = u64::from_str_radix(number, 16) {
                log.spare_names_begin_after(number);
            }
            keep_or_remove_spare(log, name)?;
        }
    }
    segments.sort_by_key(|segment| segment.header.first);
    // Nobody writes to any but the last.
    for segment in segments.iter().rev().skip(1) {
        segment.file.release_memory();
    }
    Ok(segments)
}

fn keep_or_remove_spare(log: &LogState, name: String) -> Result<(), Error> {
    let action = || format!("taking over {name}");
    let file = log.disk.open(&name).map_err(Error::disk(action()))?;
    let bytes = file.bytes().map_err(Error::disk(action()))?;
    let mut spares = log.spares.lock();
    if bytes == log.options.segment_bytes && spares.len() < SPARES_MAX {
        spares.push(Spare { name, file });
        return Ok(());
    }
    log.disk.remove(&name).map_err(Error::disk(action()))
}

/// Each segment must begin where the one before it ends.
fn check_row(segments: &[Arc<Segment>]) -> Result<(), Error> {
    for pair in segments.windows(2) {
        let (earlier, later) = (&pair[0].header, &pair[1].header);
        if later.previous.next() < earlier.first || later.previous_sequence != earlier.sequence {
            return Err(Error::Corrupt {
                file: pair[1].name.clone(),
                detail: format!("it does not follow {}", pair[0].name),
            });
        }
    }
    Ok(())
}

fn create(log: &LogState) -> Result<LogEnd, Error> {
    let header = SegmentHeader {
        group: log.options.group,
        sequence: 1,
        first: LogPosition::new(1),
        previous: LogPosition::BEFORE_FIRST,
        previous_time: ClusterTime::ZERO,
        previous_term: Term::new(0),
        wall_ms: log.wall.now_ms(),
        previous_sequence: 0,
    };
    log.begin_segment(header, 0, Fill::Zeroed)
        .map_err(Error::disk("creating the log"))?;
    Ok(LogEnd {
        last: LogPosition::BEFORE_FIRST,
        last_time: ClusterTime::ZERO,
        last_wall_ms: 0,
        last_term: Term::new(0),
        offset: HEADER_BYTES,
    })
}

/// Finds the end of the last segment and makes it stable.
fn repair_end(segment: &Segment) -> Result<LogEnd, Error> {
    let failed = || Error::disk(format!("recovering {}", segment.name));
    let header = &segment.header;
    let mut end = LogEnd {
        last: header.first.previous(),
        last_time: header.previous_time,
        last_wall_ms: header.wall_ms,
        last_term: header.previous_term,
        offset: HEADER_BYTES,
    };
    // The entries that may not have been synced begin here.
    let mut unsynced = VecDeque::new();
    let mut walk = segment.walk(header.first);
    let why = loop {
        match walk.step().map_err(failed())? {
            Found::Entry(found) => {
                unsynced.push_back((found.entry.position, found.offset));
                while unsynced
                    .pop_front_if(|(position, _)| *position <= found.synced)
                    .is_some()
                {}
                end.last = found.entry.position;
                end.last_time = found.entry.time;
                end.last_wall_ms = found.entry.wall_ms;
                end.last_term = found.entry.term;
            }
            Found::Nothing => break "nothing is written here",
            Found::NotAnEntry(why) => break why,
        }
    };
    end.offset = walk.offset();
    let next = end.last.next();
    let stragglers = segment.search_after(next, end.offset).map_err(failed())?;
    if stragglers.synced_max >= next {
        return Err(Error::Corrupt {
            file: segment.name.clone(),
            detail: format!(
                "position {next} at byte {}: {why}, yet a later entry says that it was synced",
                end.offset
            ),
        });
    }
    if stragglers.used_end > end.offset {
        tracing::info!(segment = segment.name, position = %next, "clearing what follows the end of the log");
    }
    let start = unsynced.front().map_or(end.offset, |(_, offset)| *offset);
    rewrite(segment, start, end.offset, stragglers.used_end).map_err(failed())?;
    Ok(end)
}

/// Writes `start..end` again as it is and zeros into `end..zero_end`, then syncs.
fn rewrite(segment: &Segment, start: u64, end: u64, zero_end: u64) -> io::Result<()> {
    let mut bytes = vec![0u8; (zero_end - start) as usize];
    segment
        .file
        .read_at(start, &mut bytes[..(end - start) as usize])?;
    if !bytes.is_empty() {
        segment.file.write_at(start, &bytes)?;
    }
    segment.file.sync()
}

fn record_gap(
    log: &LogState,
    end: &LogEnd,
    applied: LogPosition,
    applied_time: Option<ClusterTime>,
    syncer: &mut Syncer,
) -> Result<LogEnd, Error> {
    let durable = syncer().map_err(Error::StateMachine)?;
    assert!(
        durable >= applied,
        "a sync covers what was applied before it"
    );
    tracing::warn!(
        log_end = %end.last, applied = %applied,
        "the state is ahead of the log after a power cut: writes that did not ask for a sync are kept, but cannot be read from the log"
    );
    let header = SegmentHeader {
        group: log.options.group,
        sequence: log.active().header.sequence + 1,
        first: applied.next(),
        previous: end.last,
        previous_time: end.last_time.max(applied_time.unwrap_or(ClusterTime::ZERO)),
        previous_term: end.last_term,
        wall_ms: log.wall.now_ms(),
        previous_sequence: log.active().header.sequence,
    };
    log.begin_segment(header, 0, Fill::Reserved)
        .map_err(Error::disk("continuing the log after a gap"))?;
    log.set_appended(applied, HEADER_BYTES);
    Ok(LogEnd {
        last: applied,
        last_time: header.previous_time,
        last_wall_ms: header.wall_ms,
        last_term: header.previous_term,
        offset: HEADER_BYTES,
    })
}
