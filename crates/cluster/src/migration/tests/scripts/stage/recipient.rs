//! What happens to the recipient, and what it has stored by then.

use super::super::transitions;
use super::*;

impl Stage {
    pub(in super::super) fn recipient(&mut self, event: RecipientEvent, death: Death) -> String {
        let Some(before) = self.recipient.clone() else {
            return "recipient: ignored, there is no such move".to_owned();
        };
        let stepped = before.step(event.clone(), self.known_at_begin);
        let after = match &stepped {
            None => "ignored".to_owned(),
            Some(to) => recipient_state(to.next.as_ref()),
        };
        self.taken.insert((
            format!(
                "recipient {}",
                transitions::kind(&recipient_state(Some(&before)))
            ),
            transitions::recipient_event(&event),
            transitions::kind(&after),
        ));
        let learned = match event {
            RecipientEvent::Message(ToRecipient::Release { outcome, .. })
            | RecipientEvent::Decided(outcome) => Some(outcome),
            RecipientEvent::Message(_)
            | RecipientEvent::Copied { .. }
            | RecipientEvent::Aligned { .. }
            | RecipientEvent::Finish { .. }
            | RecipientEvent::Failed
            | RecipientEvent::Timer => None,
        };
        match stepped {
            None => format!("recipient: ignored in {}", recipient_state(Some(&before))),
            Some(transition) => self.recipient_becomes(transition, learned, death),
        }
    }

    fn recipient_becomes(
        &mut self,
        transition: Transition<Recipient>,
        learned: Option<Outcome>,
        death: Death,
    ) -> String {
        if death == Death::BeforeItIsWritten {
            return "recipient: (nothing is written, nothing is sent)".to_owned();
        }
        let phase = |recipient: &Option<Recipient>| recipient.as_ref().map(|it| it.phase);
        let before = phase(&self.recipient);
        self.recipient = transition.next;
        if phase(&self.recipient) != before {
            match (phase(&self.recipient), learned) {
                (Some(RecipientPhase::Owner), Some(Outcome::Committed { version, .. })) => {
                    (self.b.owns, self.known) = (true, version);
                }
                (Some(RecipientPhase::Aborted), _) => self.b.dead = true,
                _ => {}
            }
        }
        let state = recipient_state(self.recipient.as_ref());
        let sends = self.sends(Party::Recipient, transition.send, death);
        format!("recipient: {state} {sends}")
    }

    fn standing(&self) -> Standing {
        match (self.b.owns, self.b.dead) {
            (true, _) => Standing::Owns,
            (false, true) => Standing::HoldsDeadData,
            (false, false) => Standing::Empty,
        }
    }

    pub(in super::super) fn recipient_copies(&mut self, all_but: u64, death: Death) -> String {
        if !matches!(
            self.recipient,
            Some(Recipient {
                phase: RecipientPhase::Receiving { .. },
                ..
            })
        ) {
            return "recipient: copies nothing any more".to_owned();
        }
        // Copied documents are in the log before the position is.
        self.b.documents = self.a.documents - all_but;
        let event = RecipientEvent::Copied {
            up_to: self.b.documents,
            digest: self.b.digest(),
        };
        self.recipient(event, death)
    }

    pub(in super::super) fn recipient_aligns(&mut self, death: Death) -> String {
        let catalog = self.recipient.as_ref().map_or(0, |it| it.moved.catalog);
        self.recipient(RecipientEvent::Aligned { catalog }, death)
    }

    pub(in super::super) fn recipient_hears(
        &mut self,
        message: Message,
        death: Death,
    ) -> Result<String, String> {
        let message = match message {
            Message::Sent(Send::Recipient(message)) => message,
            Message::Answer(Ok(outcome)) => {
                return Ok(self.recipient(RecipientEvent::Decided(outcome), death));
            }
            Message::Answer(Err(_)) | Message::Sent(Send::Donor(_) | Send::Authority(_)) => {
                return Err("that is not for the recipient".to_owned());
            }
        };
        let phase = self.recipient.as_ref().map(|it| it.phase);
        Ok(match (phase, message) {
            (None, ToRecipient::Receive { moved, since }) => {
                let standing = self.standing();
                let begun = Recipient::begin(moved, since, standing);
                let after = match &begun {
                    None => "ignored".to_owned(),
                    Some(begun) => recipient_state(begun.next.as_ref()),
                };
                self.taken.insert((
                    "recipient none".to_owned(),
                    format!("begin, {standing:?}"),
                    transitions::kind(&after),
                ));
                match begun {
                    None => format!("recipient: ignored, {standing:?}"),
                    Some(begun) => {
                        self.known_at_begin = self.known;
                        self.recipient_becomes(begun, None, death)
                    }
                }
            }
            // What the shell says of a move that is forgotten: it has ended.
            (None, ToRecipient::Release { id, .. }) => {
                let answer = vec![Send::Donor(ToDonor::Released { id })];
                let sends = self.sends(Party::Recipient, answer, death);
                format!("recipient: forgotten {sends}")
            }
            (None, ToRecipient::Finish { id, .. }) => {
                let answer = vec![Send::Donor(ToDonor::Cannot { id })];
                let sends = self.sends(Party::Recipient, answer, death);
                format!("recipient: forgotten {sends}")
            }
            // Nobody works out a digest of what is to be removed.
            (Some(RecipientPhase::Aborted), message @ ToRecipient::Finish { .. }) => {
                self.recipient(RecipientEvent::Message(message), death)
            }
            (
                Some(_),
                ToRecipient::Finish {
                    catalog,
                    up_to,
                    digest: wanted,
                    ..
                },
            ) => {
                let found = self.b.digest();
                let event = RecipientEvent::Finish {
                    catalog,
                    up_to,
                    wanted,
                    found,
                };
                self.recipient(event, death)
            }
            (Some(_), message @ (ToRecipient::Receive { .. } | ToRecipient::Release { .. })) => {
                self.recipient(RecipientEvent::Message(message), death)
            }
        })
    }

    /// Its document is removed, when the move has ended for both.
    pub(in super::super) fn recipient_forgets(&mut self) -> Result<String, String> {
        match (&self.donor, self.recipient.take().map(|it| it.phase)) {
            (None, Some(RecipientPhase::Owner | RecipientPhase::Aborted)) => {
                Ok("recipient: forgotten".to_owned())
            }
            _ => Err("the move has not ended".to_owned()),
        }
    }
}
