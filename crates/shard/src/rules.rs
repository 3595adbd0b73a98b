//! Rules that a test can switch off, to see that it finds out. Outside of tests they hold.

#[cfg(test)]
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Who evaluates a change of a key holds its latch until the entry is appended.
    HoldLatches,
    /// Evaluation sees what was appended and is not applied yet.
    SeeAppended,
    /// What was only appended is forgotten with leadership.
    ForgetAppended,
    /// An entry of a session is refused after a break in leadership since its check-out.
    SessionsOfOneTerm,
    /// A read after a time has an applied entry at or after it.
    ReachTime,
    /// What a statement did is stored with what it wrote.
    StoreStatements,
    /// Who names no version is shown only what is owned, and waits for what is blocked.
    CheckUnversionedReads,
    /// Who names no version writes only what is owned, and waits for what is blocked.
    CheckUnversionedWrites,
    /// A read at a time is answered from what was owned then.
    OwnerAtTime,
    /// A read at a time is refused for what came or went before and was not known to who routed it.
    KnownPast,
    /// Nothing is read of a range that is blocked for reads.
    BlockReads,
    /// What is owned, and what is blocked, is stored by the entry that changes it.
    StoreOwnership,
    /// No removal of what is owned is registered.
    RegisterUnowned,
    /// Nothing that is owned is removed, whatever was registered.
    RemoveUnowned,
    /// Dead records stay until nobody reads at a time at which they were owned.
    AwaitWindow,
    /// A donor asks for the decision when a majority of its members blocks reads.
    CommitBlock,
    /// A recipient says that it is ready when a majority of its members has all of it.
    CommitReadiness,
}

/// Which rules hold.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    #[cfg(test)]
    off: AtomicU32,
}

impl Rules {
    #[cfg(not(test))]
    pub(crate) fn hold(&self, _rule: Rule) -> bool {
        true
    }

    #[cfg(test)]
    pub(crate) fn hold(&self, rule: Rule) -> bool {
        self.off.load(Ordering::SeqCst) & (1 << rule as u32) == 0
    }

    #[cfg(test)]
    pub(crate) fn switch_off(&self, rule: Rule) {
        self.off.fetch_or(1 << rule as u32, Ordering::SeqCst);
    }
}
