//! What is asked of the authority, and its answers.

use super::super::words::authority_says;
use super::*;

impl Stage {
    pub(super) fn apply(&mut self, decision: Decision<&'static str>) {
        self.authority.apply(decision).expect("changes that fit");
    }

    pub(in super::super) fn authority_hears(
        &mut self,
        from: Party,
        message: Message,
    ) -> Result<String, String> {
        let now = self.next_time();
        let (answered, known) = match message {
            Message::Sent(Send::Authority(ToAuthority::Commit { moved })) => {
                let expected = Expected {
                    incarnation: table().incarnation,
                    catalog: Some(moved.catalog),
                };
                let request = Request::Move {
                    expected,
                    range: moved.range,
                    from: moved.from,
                    to: moved.to,
                    history: History::default(),
                };
                let decided = self.authority.decide(moved.id, &NAME, request, now);
                (decided, moved.catalog)
            }
            Message::Sent(Send::Authority(ToAuthority::Settle { id })) => {
                (Ok(self.authority.settle(id)), 0)
            }
            _ => return Err("that is not for the authority".to_owned()),
        };
        let (answer, is_new) = match answered {
            Ok(Answer::Write(decision)) => {
                let outcome = decision.outcome;
                self.apply(decision);
                (Ok(outcome), true)
            }
            Ok(Answer::Decided(outcome)) => (Ok(outcome), false),
            Err(Refusal::CatalogChanged { now }) => {
                (Err(Refused::CatalogChanged { known, now }), false)
            }
            Err(refusal) => (Err(Refused::Otherwise(refusal.to_string())), false),
        };
        let text = authority_says(&answer, is_new);
        let message = Message::Answer(answer);
        self.sent.push(OnItsWay {
            from: Party::Authority,
            to: from,
            message,
        });
        Ok(text)
    }
}
