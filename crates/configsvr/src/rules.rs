//! Rules that a test can switch off, to see that it finds out. Outside of tests they hold.

#[cfg(test)]
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// What is decided counts from a time behind the block that it was asked for with.
    DecideBehindBlock,
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
