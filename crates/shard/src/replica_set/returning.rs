//! Whether a member that is added again is the server that was removed.
//!
//! It is asked, as links ask whom they have reached: a server that holds the member's data knows which
//! member it is.
//!
//! ```text
//!   it is that member, or does not answer     it comes back to the life that it had
//!   it holds nothing                          another life, now or as soon as it says so
//!   it is another member                      another life (and it refuses that one, too)
//! ```
//!
//! ⚑ A member that has come back to its life is never begun anew under it: links do not call it a newcomer. So
//! whoever is silent when it is added is one server, or none. It is asked again until it is heard; it may still be
//! a voter meanwhile, if it was removed and added again before the log had carried out the first.

use super::configuration::{Configuration, Lives};
use super::transport::{MemberNumber, ask};
use crate::Shard;
use model::Code;
use model::bson::ValueRef;
use replication::{Members, Term};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpStream;

const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// A member that was not heard for so long is asked who it is.
const TICKS_AWAY: u64 = 50;

/// What the server at a member's host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    Same,
    Empty,
    Other,
    Silent,
}

/// What is known of those who should have come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    All,
    /// Somebody was not heard yet.
    NotAll,
    /// Somebody has another life now.
    Renewed,
}

/// Whether a member has said something lately.
fn is_heard(members: &Members, number: MemberNumber) -> bool {
    let progress = members.of(number.in_log());
    let ticks = progress.and_then(|progress| progress.ticks_since_contact);
    number.in_log() == members.me || ticks.is_some_and(|ticks| ticks < TICKS_AWAY)
}

impl Shard {
    /// Members of `next` that come back to a life they had, and to which.
    pub(crate) async fn returning(
        &self,
        current: &Configuration,
        next: &Configuration,
    ) -> BTreeMap<i32, u32> {
        let mut returning = BTreeMap::new();
        for member in &next.members {
            if current.member(member.id).is_some() {
                continue;
            }
            for life in current.lives.earlier(member.id, &member.host) {
                let id = member.id;
                match self.ask_life(MemberNumber { id, life }, &member.host).await {
                    Whereabouts::Same | Whereabouts::Silent => {
                        returning.insert(id, life);
                        break;
                    }
                    Whereabouts::Other => {}
                    Whereabouts::Empty => break,
                }
            }
        }
        returning
    }

    /// Gives another life to members that should have come back to theirs, and hold nothing.
    /// The caller led in `term` when it read the configuration.
    pub(super) async fn renew_lives(
        &self,
        term: Term,
        known: &Configuration,
        members: &Members,
    ) -> Returned {
        let mut lives = known.lives.clone();
        let mut returned = Returned::All;
        for member in &known.members {
            let number = known.number(member);
            if !known.lives.is_returned(member.id) || is_heard(members, number) {
                continue;
            }
            match self.ask_life(number, &member.host).await {
                Whereabouts::Empty => lives.renew(member.id, &member.host),
                Whereabouts::Same | Whereabouts::Other | Whereabouts::Silent => {
                    returned = Returned::NotAll;
                }
            }
        }
        if lives != known.lives {
            self.store_lives(term, known, lives).await;
            returned = Returned::Renewed;
        }
        returned
    }

    async fn store_lives(&self, term: Term, known: &Configuration, lives: Lives) {
        let _ddl = self.ddl.lock().await;
        let Some(now) = self.replica_set.configuration() else {
            return;
        };
        // Another configuration is looked at anew.
        if *now != *known {
            return;
        }
        let mut next = Configuration::clone(&now);
        next.version = next.version.saturating_add(1);
        next.lives = lives;
        if let Err(error) = self.store_configuration(term, next).await {
            tracing::warn!("a member has lost its data, and is not begun anew yet: {error}");
        }
    }

    async fn ask_life(&self, number: MemberNumber, host: &str) -> Whereabouts {
        let Some(introduction) = self.introduction(number, false) else {
            return Whereabouts::Silent;
        };
        let address = self.peers.detour(host);
        let asked = async {
            let mut stream = TcpStream::connect(&address).await?;
            ask(&mut stream, &introduction.to_command()).await
        };
        let Ok(Ok(reply)) = tokio::time::timeout(ASK_TIMEOUT, asked).await else {
            return Whereabouts::Silent;
        };
        let ok = reply.get("ok").and_then(model::number::Number::of);
        if ok.is_some_and(|ok| ok.to_f64() == 1.0) {
            return Whereabouts::Same;
        }
        match reply.get("code") {
            Some(ValueRef::Int32(code)) if code == Code::NOT_YET_INITIALIZED.0 => {
                Whereabouts::Empty
            }
            _ => Whereabouts::Other,
        }
    }
}
