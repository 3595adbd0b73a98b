//! Running rows on both servers and judging what came back.
//!
//! Workers take groups from a shared list; each has a session per server, and the two servers work
//! on a group at the same time. Results are put back into table order before they are reported.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::difference::differences;
use crate::normalize::Normalizer;
use crate::notation::print;
use crate::row::{Row, Step};
use crate::session::{Outcome, Session, selected};
use crate::sharding::{is_about_plans, is_refused_by_routers, level};
use crate::table::{Group, Setup, Table};
use crate::value::{Fields, Value, get};

/// Two servers, and how to run against them.
#[derive(Debug, Clone)]
pub struct Pair {
    pub oracle: String,
    pub target: String,
    /// The target is a `mongod` too: then nothing is expected to differ.
    pub self_check: bool,
    /// The target is a router over several shards.
    pub cluster: bool,
    /// Both are sets of three members.
    pub members: bool,
}

/// What came of one row.
#[derive(Debug, Clone)]
pub enum Verdict {
    Agrees,
    /// Each line names a place, what the oracle said, and what the target said.
    Differs(Vec<String>),
    /// Differs, as the row says it does.
    KnownToDiffer,
    /// The row says that it differs, and it does not any more.
    AgreesUnexpectedly,
    /// Routers refuse it for sharded collections or show it otherwise, MongoDB's too.
    NotForRouters,
    /// The oracle gave no replies: the row itself is wrong.
    Broken(String),
}

impl Verdict {
    pub fn is_failure(&self) -> bool {
        match self {
            Verdict::Agrees | Verdict::KnownToDiffer | Verdict::NotForRouters => false,
            Verdict::Differs(_) | Verdict::AgreesUnexpectedly | Verdict::Broken(_) => true,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Judged {
    pub table: String,
    pub case: String,
    pub text: String,
    pub verdict: Verdict,
}

/// A session on each server, in databases of the same name where the servers are two.
pub struct Sessions {
    pub oracle: Session,
    pub target: Session,
    self_check: bool,
    cluster: bool,
    members: bool,
}

impl Sessions {
    pub fn open(pair: &Pair, worker: usize) -> Sessions {
        let unique = format!(
            "diff{}_{:x}_{worker}",
            std::process::id(),
            fastrand::u32(..)
        );
        let of_target = if pair.oracle == pair.target {
            format!("{unique}t")
        } else {
            unique.clone()
        };
        Sessions {
            oracle: Session::new(&pair.oracle, &unique),
            target: Session::new(&pair.target, &of_target).with_sharding(pair.cluster),
            self_check: pair.self_check,
            cluster: pair.cluster,
            members: pair.members,
        }
    }

    /// Runs rows over a setup on both servers at once.
    pub fn run(&mut self, setup: &Setup, rows: &[&Row]) -> Vec<Verdict> {
        let (oracle, target) = (&mut self.oracle, &mut self.target);
        let (by_oracle, by_target) = std::thread::scope(|scope| {
            let by_oracle = scope.spawn(|| oracle.run_group(setup, rows));
            let by_target = target.run_group(setup, rows);
            let by_oracle = by_oracle
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (by_oracle, by_target)
        });
        rows.iter()
            .zip(by_oracle.iter().zip(&by_target))
            .map(|(row, (by_oracle, by_target))| self.judge(row, by_oracle, by_target))
            .collect()
    }

    fn judge(&self, row: &Row, by_oracle: &Outcome, by_target: &Outcome) -> Verdict {
        let lines = match (by_oracle, by_target) {
            (Err(reason), _) => return Verdict::Broken(reason.clone()),
            (Ok(_), Err(reason)) => vec![reason.clone()],
            (Ok(by_oracle), Ok(by_target)) => self.compare(row, by_oracle, by_target, as_it_is),
        };
        if let (true, Ok(by_oracle), Ok(by_target)) =
            (self.cluster && !lines.is_empty(), by_oracle, by_target)
            && (row.routed.is_some()
                || is_about_plans(row)
                || by_target.iter().any(is_refused_by_routers)
                || self.compare(row, by_oracle, by_target, level).is_empty())
        {
            return Verdict::NotForRouters;
        }
        if self.members && !lines.is_empty() && row.members.is_some() {
            return Verdict::KnownToDiffer;
        }
        match (lines.is_empty(), &row.known) {
            (true, None) => Verdict::Agrees,
            // What one member shows otherwise than the oracle, three may not.
            (true, Some(_)) if self.self_check || self.members => Verdict::Agrees,
            (true, Some(_)) => Verdict::AgreesUnexpectedly,
            (false, Some(_)) if !self.self_check => Verdict::KnownToDiffer,
            (false, _) => Verdict::Differs(lines),
        }
    }

    fn compare(
        &self,
        row: &Row,
        by_oracle: &[Fields],
        by_target: &[Fields],
        level: fn(&Step, &Fields, &Fields) -> (Fields, Fields),
    ) -> Vec<String> {
        let now_seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_secs();
        let normalizer = |database| Normalizer {
            database,
            now_seconds,
            comparison: &row.comparison,
        };
        let mut lines = Vec::new();
        for (index, (oracle, target)) in by_oracle.iter().zip(by_target).enumerate() {
            let (oracle, target) = &level(&row.steps[index], oracle, target);
            let found = match one_sided_failure(oracle, target) {
                Some(line) => vec![line],
                None => differences(
                    &normalizer(self.oracle.database.as_str()).reply(oracle),
                    &normalizer(self.target.database.as_str()).reply(target),
                ),
            };
            let prefix = if by_oracle.len() > 1 {
                format!("#{} ", index + 1)
            } else {
                String::new()
            };
            let differs = !found.is_empty();
            lines.extend(found.into_iter().map(|line| format!("{prefix}{line}")));
            if differs {
                lines.extend(error_texts(oracle, target).map(|line| format!("{prefix}{line}")));
            }
        }
        lines
    }
}

/// Replies without allowances.
fn as_it_is(_: &Step, oracle: &Fields, target: &Fields) -> (Fields, Fields) {
    (oracle.clone(), target.clone())
}

/// If only one server fails, that alone is worth a line: the rest follows from it.
fn one_sided_failure(oracle: &Fields, target: &Fields) -> Option<String> {
    let show = |reply: &Fields| {
        let failed = get(reply, "ok").is_some_and(|ok| !ok.is_truthy());
        let name = get(reply, "codeName")
            .and_then(Value::as_str)
            .unwrap_or("an error without a name");
        let code = get(reply, "code").map_or(String::new(), print);
        if failed {
            Err(format!("{name} {code}"))
        } else {
            Ok("success".to_owned())
        }
    };
    match (show(oracle), show(target)) {
        (Ok(oracle), Err(target)) | (Err(oracle), Ok(target)) => {
            Some(format!("outcome: {oracle} | {target}"))
        }
        (Ok(_), Ok(_)) | (Err(_), Err(_)) => None,
    }
}

/// What the servers say about an error: not compared, but it helps.
fn error_texts(oracle: &Fields, target: &Fields) -> Option<String> {
    let text = |reply: &Fields| {
        let of_statement = get(reply, "writeErrors")
            .and_then(Value::as_array)
            .and_then(|errors| errors.first()?.get("errmsg"));
        get(reply, "errmsg")
            .or(of_statement)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    match (text(oracle), text(target)) {
        (None, None) => None,
        (oracle, target) => Some(format!(
            "(text) {} | {}",
            oracle.as_deref().unwrap_or("no error"),
            target.as_deref().unwrap_or("no error")
        )),
    }
}

/// Runs every row that the selection keeps.
pub fn run_tables(pair: &Pair, tables: &[Table], only: Option<&str>, jobs: usize) -> Vec<Judged> {
    let groups: Vec<&Group> = tables.iter().flat_map(|table| &table.groups).collect();
    let next = Mutex::new(0);
    let judged: Mutex<BTreeMap<usize, Vec<Judged>>> = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for worker in 0..jobs.max(1) {
            let (groups, next, judged) = (&groups, &next, &judged);
            scope.spawn(move || {
                let mut sessions = Sessions::open(pair, worker);
                loop {
                    let index = {
                        let mut next = next
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        *next += 1;
                        *next - 1
                    };
                    let Some(group) = groups.get(index) else {
                        break;
                    };
                    let rows = selected(group, only);
                    if rows.is_empty() {
                        continue;
                    }
                    let verdicts = sessions.run(&group.setup, &rows);
                    let of_group = rows
                        .iter()
                        .zip(verdicts)
                        .map(|(row, verdict)| Judged {
                            table: group.table.clone(),
                            case: group.case_name(row),
                            text: row.text.clone(),
                            verdict,
                        })
                        .collect();
                    judged
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .insert(index, of_group);
                }
            });
        }
    });
    let judged = judged
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    judged.into_values().flatten().collect()
}
