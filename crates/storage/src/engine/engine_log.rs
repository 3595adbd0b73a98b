//! What the engine says in its own log.
//!
//! When a flush or a merge in the background fails, the engine tells its log (the `log` facade) why, and whoever
//! writes next only that it gave up. The last such word is kept, so that the error that stops the server
//! names the cause; all of them go to our log.
//!
//! There is one for the process: with several engines in it the cause may be another's, which a full or broken
//! disk is for all of them alike.

use parking_lot::Mutex;

static ENGINE_LOG: EngineLog = EngineLog::new();

struct EngineLog {
    last_words: Mutex<Option<String>>,
}

impl EngineLog {
    const fn new() -> Self {
        Self {
            last_words: Mutex::new(None),
        }
    }
}

impl log::Log for EngineLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let crate_name = metadata.target().split("::").next().unwrap_or_default();
        let is_engine = matches!(crate_name, "fjall" | "lsm_tree" | "sfa");
        is_engine && metadata.level() <= log::Level::Error
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let words = record.args().to_string();
            tracing::warn!("storage engine: {words}");
            *self.last_words.lock() = Some(words);
        }
    }

    fn flush(&self) {}
}

/// Listens from now on, unless somebody else does.
pub(crate) fn listen() {
    if log::set_logger(&ENGINE_LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Error);
    }
}

/// What went wrong last in the background.
pub(crate) fn last_words() -> Option<String> {
    ENGINE_LOG.last_words.lock().clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::{Level, Log, Record};

    #[test]
    fn the_last_word_of_the_engine_is_kept() {
        let engine_log = EngineLog::new();
        let say = |level, target, words: &str| {
            let mut record = Record::builder();
            let record = record.level(level).target(target);
            engine_log.log(&record.args(format_args!("{words}")).build());
        };
        let last = || engine_log.last_words.lock().clone();
        say(Level::Error, "somebody::else", "not about the disk");
        say(Level::Info, "fjall::worker_pool", "all is well");
        say(Level::Error, "fjallish", "neither");
        assert_eq!(last(), None);
        say(Level::Error, "lsm_tree::compaction", "a merge failed");
        say(
            Level::Error,
            "fjall::worker_pool",
            "Worker #1 crashed: disk full",
        );
        assert_eq!(last().as_deref(), Some("Worker #1 crashed: disk full"));
    }
}
