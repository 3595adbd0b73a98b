//! Commands that the config server carries out, asked until their answer is known.
//!
//! ```text
//!   command ─► id ─► asked ── an answer ──────────────────────────────────────► the client
//!                      ▲        │ connection lost, or the primary is one no more
//!                      └─ pause ┘ until the client's `maxTimeMS` is over; without one, until the config server
//!                                 was without a primary for a minute
//! ```
//!
//! ⚑ It is asked again with the same id, so the config server joins what it has begun, tells how it ended, or begins
//! it if it never heard of it (`configsvr/src/ticket.rs`): nothing is done twice, and the client gets the one answer.
//! An outcome that is still unknown when the time is over is said to be: `MaxTimeMSExpired` where the client has set it,
//! else `HostUnreachable`, whatever was last heard: that the config server's primary is none any more says nothing of
//! this router.
//!
//! Who is killed, or whose client goes, asks no more; what was begun goes on.

use crate::Router;
use crate::config::is_lost;
use crate::failure::Failure;
use crate::operation;
use crate::scan::code_of;
use model::bson::{Doc, DocWriter, Element, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use std::time::Duration;
use tokio::time::Instant;
use wire::{CallError, Reply, Request};

/// How long the config server may be without a primary.
const WITHOUT_PRIMARY_MAX: Duration = Duration::from_secs(60);
/// Who worked on a command for so long was there: what comes after its loss is another one.
const WORKED: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How long somebody goes on asking. Times are counted from when it began.
#[derive(Clone, PartialEq, Debug)]
struct Persistence {
    /// The client's own limit.
    limit: Option<Duration>,
    /// Since when there is no primary.
    lost_at: Option<Duration>,
    pause: Duration,
}

/// How a question got no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// It reached nobody.
    Absent,
    /// Who had it is gone, or is not the primary any more.
    Gone,
}

impl Persistence {
    fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            lost_at: None,
            pause: FIRST_PAUSE,
        }
    }

    /// A question asked at `asked` was lost now: how long to wait before the next, if there is to be one.
    fn lost(&mut self, loss: Loss, asked: Duration, now: Duration) -> Option<Duration> {
        if loss == Loss::Gone && now.saturating_sub(asked) >= WORKED {
            *self = Self::new(self.limit);
        }
        let lost_at = *self.lost_at.get_or_insert(now);
        let end = match self.limit {
            Some(limit) => limit,
            None => lost_at + WITHOUT_PRIMARY_MAX,
        };
        if now >= end {
            return None;
        }
        let pause = self.pause.min(end - now);
        self.pause = (self.pause * 2).min(LAST_PAUSE);
        Some(pause)
    }

    /// What is left of the client's limit, in milliseconds and not nothing.
    fn left_ms(&self, now: Duration) -> Option<i64> {
        let left = self.limit?.saturating_sub(now).as_millis();
        Some(i64::try_from(left).unwrap_or(i64::MAX).max(1))
    }
}

/// Lets the config server carry out a client's command.
pub(crate) async fn carry_out(
    router: &Router,
    database: &str,
    command: Doc<'_>,
    limit: Option<Duration>,
) -> Result<Reply, Failure> {
    let id = Uuid(fastrand::u128(..).to_be_bytes());
    let began = Instant::now();
    let mut persistence = Persistence::new(limit);
    loop {
        let asked = began.elapsed();
        let sent = request(router, id, database, command, persistence.left_ms(asked));
        let answered = router.config.endpoint.call(sent?).await;
        let (loss, why) = match answered {
            Ok(reply) => {
                router.config.heard(reply.document());
                let code = code_of(&reply);
                match is_lost(code) {
                    true => (Loss::Gone, format!("{code:?}")),
                    false => return Ok(reply),
                }
            }
            Err(error) => {
                let loss = match &error {
                    CallError::OutcomeUnknown(_) => Loss::Gone,
                    CallError::NotSent(_) | CallError::NobodyFits(_) => Loss::Absent,
                };
                (loss, error.to_string())
            }
        };
        let Some(pause) = persistence.lost(loss, asked, began.elapsed()) else {
            let message = format!("the config server: {why}");
            return Err(match limit {
                Some(_) => over().into(),
                None => Error::new(Code::HOST_UNREACHABLE, message).into(),
            });
        };
        tracing::debug!("the config server is asked again in {pause:?}: {why}");
        operation::waiting(tokio::time::sleep(pause)).await?;
    }
}

fn over() -> Error {
    Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit")
}

fn request(
    router: &Router,
    id: Uuid,
    database: &str,
    command: Doc<'_>,
    left_ms: Option<i64>,
) -> Result<Request, Error> {
    let mut body = DocWriter::new()
        .with("_configsvrDdl", 1)
        .with("db", database);
    body.append(
        "operation",
        ValueRef::Binary {
            subtype: 4,
            bytes: &id.0,
        },
    );
    body.begin_document("command");
    let copy = |body: &mut DocWriter, element: &Element<'_>| {
        match (element.key(), left_ms) {
            ("maxTimeMS", Some(left_ms)) => body.append("maxTimeMS", left_ms),
            _ => body.append_element(element),
        };
    };
    for element in command.iter() {
        copy(&mut body, &element);
    }
    body.end();
    for name in ["lsid", "txnNumber", "writeConcern", "maxTimeMS", "comment"] {
        if let Some(element) = command.element(name) {
            copy(&mut body, &element);
        }
    }
    router.clock.append_to(&mut body);
    router.config.append_time(&mut body);
    body.append("$db", "admin");
    Request::from_parts(body.finish(), Vec::new())
}

#[cfg(test)]
mod tests {
    use super::{Loss, Persistence};
    use std::time::Duration;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_minute_without_a_primary_is_enough() {
        let mut persistence = Persistence::new(None);
        assert_eq!(persistence.lost(Loss::Gone, ms(0), ms(5)), Some(ms(20)));
        assert_eq!(
            persistence.lost(Loss::Absent, ms(25), ms(20_025)),
            Some(ms(40))
        );
        assert_eq!(
            persistence.lost(Loss::Gone, ms(50_000), ms(59_990)),
            Some(ms(15))
        );
        assert_eq!(persistence.lost(Loss::Absent, ms(60_005), ms(60_005)), None);
    }

    /// An operation of hours that loses one primary after the other is asked for each time.
    #[test]
    fn who_worked_on_it_was_there() {
        let mut persistence = Persistence::new(None);
        let hour = 3_600_000;
        for at in (0..10 * hour).step_by(hour as usize) {
            let lost = persistence.lost(Loss::Gone, ms(at), ms(at + hour));
            assert_eq!(lost, Some(ms(20)));
        }
        // Whoever was only looked for was not there.
        let at = 10 * hour;
        assert_eq!(
            persistence.lost(Loss::Absent, ms(at), ms(at + 60_000)),
            None
        );
    }

    #[test]
    fn a_client_s_limit_is_the_limit() {
        let mut persistence = Persistence::new(Some(ms(100)));
        assert_eq!(persistence.left_ms(ms(1)), Some(99));
        assert_eq!(persistence.lost(Loss::Absent, ms(0), ms(5)), Some(ms(20)));
        assert_eq!(persistence.lost(Loss::Gone, ms(25), ms(90)), Some(ms(10)));
        assert_eq!(persistence.left_ms(ms(100)), Some(1));
        assert_eq!(persistence.lost(Loss::Gone, ms(100), ms(100)), None);
        let mut patient = Persistence::new(Some(ms(600_000)));
        let lost = patient.lost(Loss::Absent, ms(0), ms(300_000));
        assert_eq!(lost, Some(ms(20)));
    }
}
