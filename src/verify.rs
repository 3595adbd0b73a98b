//! `terndb verify`: whether two clusters hold the same, as an exit code and a report.
//!
//! ```text
//! exit code 0  equal        1  different        2  could not tell, or was asked wrongly
//! ```
//!
//! Settings come from flags, then a TOML file, then defaults. Every flag has the same name in the
//! file, with `_` for `-`; a flag wins over the file, also where it is a list.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde::Deserialize;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use verifier::cluster::parse_filter;
use verifier::compare::Comparison;
use verifier::namespace::{Mapping, Pattern, Selection};
use verifier::settings::{
    Changes, DEFAULT_DESCRIBED_MAX, DEFAULT_PARTITION_BYTES, DEFAULT_WORKERS, Partitioning,
    parse_read_concern, parse_read_preference,
};
use verifier::{Control, Display, Place, Settings, Writes};

/// What could not be told, and what was asked wrongly.
const COULD_NOT_TELL: u8 = 2;
const MEGABYTE: f64 = 1_000_000.0;
/// A byte, and far more than any cluster holds.
const MEGABYTES_MIN: f64 = 0.000_001;
const MEGABYTES_MAX: f64 = 1_000_000_000_000.0;
const PAUSE_SECONDS_MAX: f64 = 86_400.0;
const DEFAULT_STATE_DIRECTORY: &str = "terndb-verify";
const DEFAULT_META_DATABASE: &str = "terndb_verify";

/// The settings of `terndb verify`, each absent until given.
#[derive(Args, Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct VerifyOptions {
    /// URI of the source cluster
    #[arg(long, value_name = "URI")]
    pub from: Option<String>,

    /// URI of the destination cluster
    #[arg(long, value_name = "URI")]
    pub to: Option<String>,

    /// Nobody writes to either cluster: check once, recheck what differed, end. Without it, changes
    /// of both clusters are followed until writes are said to be off
    #[arg(long)]
    pub writes_off: bool,

    /// Verify only namespaces like this: database.collection with * and ?, or a database (repeatable)
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,

    /// Do not verify namespaces like this (repeatable)
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,

    /// What a collection (a.x=b.y) or database (a=b) is called on the destination (repeatable)
    #[arg(long, value_name = "FROM=TO")]
    pub map: Vec<String>,

    /// Compare only documents that match this filter, as extended JSON
    #[arg(long, value_name = "JSON")]
    pub filter: Option<String>,

    /// Let fields come in another order
    #[arg(long)]
    pub ignore_field_order: bool,

    /// How collections are cut: id (along the index on _id) or natural (by record id on the
    /// source, for collections whose _ids are not in the order of insertion) [default: id]
    #[arg(long, value_name = "WAY")]
    pub partition_by: Option<String>,

    /// Compare hashes that the servers make of documents, to save network
    #[arg(long)]
    pub hash: bool,

    /// How changes are followed: stream (change streams) or oplog (the oplogs of replica sets)
    /// [default: stream]
    #[arg(long, value_name = "WAY")]
    pub changes: Option<String>,

    /// Partitions that are compared at the same time [default: 4]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub workers: Option<usize>,

    /// Size of a partition, in MB [default: 32]
    #[arg(long, value_name = "MB", allow_negative_numbers = true)]
    pub partition_mb: Option<f64>,

    /// primary, primaryPreferred, secondary, secondaryPreferred or nearest [default: the URI's]
    #[arg(long, value_name = "MODE")]
    pub read_preference: Option<String>,

    /// local, available, majority, linearizable or snapshot [default: the URI's, or majority]
    #[arg(long, value_name = "LEVEL")]
    pub read_concern: Option<String>,

    /// Read at most so much from both clusters together [default: no limit]
    #[arg(long, value_name = "MB", allow_negative_numbers = true)]
    pub max_mb_per_second: Option<f64>,

    /// Describe at most so many mismatches; all are counted [default: 1000]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_mismatches: Option<usize>,

    /// Write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Write the report to this file, as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Serve the HTTP API and Prometheus metrics on this address, such as 127.0.0.1:27020
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,

    /// Begin when the HTTP API is told to (POST /api/v1/check)
    #[arg(long)]
    pub wait: bool,

    /// Keep the run in this directory, so that it can be resumed [default: terndb-verify]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Keep the run in a database of this cluster instead
    #[arg(long, value_name = "URI")]
    pub meta: Option<String>,

    /// The database that --meta uses [default: terndb_verify]
    #[arg(long, value_name = "NAME")]
    pub meta_database: Option<String>,

    /// Give up an unfinished run that is kept there, and begin anew
    #[arg(long)]
    #[serde(skip)]
    pub restart: bool,

    /// The least time between two generations, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub generation_pause: Option<f64>,

    /// Show no progress
    #[arg(long)]
    pub quiet: bool,

    /// TOML file with any of these settings
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

pub fn run(options: VerifyOptions) -> ExitCode {
    match verify(options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("terndb verify: {error:#}");
            ExitCode::from(COULD_NOT_TELL)
        }
    }
}

fn verify(options: VerifyOptions) -> Result<u8> {
    let options = options.with_file()?;
    let (report_path, html_path) = (options.report.clone(), options.html.clone());
    let settings = options.settle()?;
    for path in [&report_path, &html_path].into_iter().flatten() {
        // Before hours of work, not after.
        check_writable(path)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let code = runtime.block_on(async {
        let place = settings.place.clone();
        let control = Control::default();
        tokio::spawn(interrupts(control.clone(), settings.writes));
        let report = verifier::verify_controlled(settings, &control).await?;
        if let Some(path) = &report_path {
            write_report(path, &report.to_json())?;
        }
        if let Some(path) = &html_path {
            write_report(path, &report.to_html())?;
        }
        // Whoever reads standard output may have gone (`| head`): the verdict stands all the same.
        let _ = write!(std::io::stdout().lock(), "{report}");
        if report.may_do_better {
            eprintln!(
                "terndb verify: what was compared is kept: start again with the same options to go on"
            );
            return anyhow::Ok(report.outcome.exit_code());
        }
        // Only now: a process that dies before has its report concluded by the next.
        if let Err(error) = verifier::store::forget(&place).await {
            eprintln!("terndb verify: the verdict stands, but the run is still kept: {error}");
        }
        anyhow::Ok(report.outcome.exit_code())
    });
    // A question that nobody answers must not keep the process.
    runtime.shutdown_background();
    for path in [&report_path, &html_path].into_iter().flatten() {
        // Without a verdict there is no new report, and an earlier one stays. It is there only then.
        let _ = std::fs::remove_file(unfinished(path));
    }
    code
}

/// Ctrl-C: asks whether writes are off where there is somebody to answer, and stops otherwise.
async fn interrupts(control: Control, writes: Writes) {
    while tokio::signal::ctrl_c().await.is_ok() {
        if writes == Writes::Off || !std::io::stdin().is_terminal() {
            return control.stop();
        }
        control.asking(true);
        eprintln!(
            "\nHave all writes to both clusters stopped? Type \"off\" to check to the end, \"stop\" (or Ctrl-C again) to stop and resume later, anything else to go on:"
        );
        let answer = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        let answer = tokio::select! {
            answer = answer => answer,
            _ = tokio::signal::ctrl_c() => return control.stop(),
        };
        control.asking(false);
        match answer {
            Ok(Ok(line)) if line.trim() == "off" => control.writes_off(),
            Ok(Ok(line)) if line.trim() == "stop" => return control.stop(),
            Ok(_) | Err(_) => eprintln!("Going on."),
        }
    }
}

/// Where a report is written before it gets its name.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// Whether it can be put into place at once: not a device or a pipe.
fn is_replaced(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.is_file())
}

fn check_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!(
            "cannot write the report to {}: it is a directory",
            path.display()
        );
    }
    match is_replaced(path) {
        true => std::fs::write(unfinished(path), "")
            .with_context(|| format!("cannot write the report to {}", path.display())),
        false => Ok(()),
    }
}

/// Either the whole report is there, or what was there before.
fn write_report(path: &Path, text: &str) -> Result<()> {
    let written = match is_replaced(path) {
        true => {
            let first = unfinished(path);
            std::fs::write(&first, text).and_then(|()| std::fs::rename(&first, path))
        }
        false => std::fs::write(path, text),
    };
    written.with_context(|| format!("cannot write the report to {}", path.display()))
}

impl VerifyOptions {
    /// Fills what no flag gave from the configuration file.
    fn with_file(self) -> Result<VerifyOptions> {
        let file = match &self.config {
            Some(path) => read_file(path)?,
            None => VerifyOptions::default(),
        };
        let list = |flags: Vec<String>, file| match flags.is_empty() {
            true => file,
            false => flags,
        };
        // Both say where the run is kept, so that either flag stands for both.
        let (state, meta) = match (&self.state, &self.meta) {
            (None, None) => (file.state, file.meta),
            (_, _) => (self.state, self.meta),
        };
        Ok(VerifyOptions {
            from: self.from.or(file.from),
            to: self.to.or(file.to),
            writes_off: self.writes_off || file.writes_off,
            include: list(self.include, file.include),
            exclude: list(self.exclude, file.exclude),
            map: list(self.map, file.map),
            filter: self.filter.or(file.filter),
            ignore_field_order: self.ignore_field_order || file.ignore_field_order,
            partition_by: self.partition_by.or(file.partition_by),
            hash: self.hash || file.hash,
            changes: self.changes.or(file.changes),
            workers: self.workers.or(file.workers),
            partition_mb: self.partition_mb.or(file.partition_mb),
            read_preference: self.read_preference.or(file.read_preference),
            read_concern: self.read_concern.or(file.read_concern),
            max_mb_per_second: self.max_mb_per_second.or(file.max_mb_per_second),
            max_mismatches: self.max_mismatches.or(file.max_mismatches),
            report: self.report.or(file.report),
            html: self.html.or(file.html),
            listen: self.listen.or(file.listen),
            wait: self.wait || file.wait,
            state,
            meta,
            meta_database: self.meta_database.or(file.meta_database),
            restart: self.restart,
            generation_pause: self.generation_pause.or(file.generation_pause),
            quiet: self.quiet || file.quiet,
            config: None,
        })
    }

    fn settle(self) -> Result<Settings> {
        let from = self
            .from
            .context("--from is missing: give the URI of the source")?;
        let to = self
            .to
            .context("--to is missing: give the URI of the destination")?;
        let patterns = |texts: &[String]| -> Result<Vec<Pattern>> {
            Ok(texts
                .iter()
                .map(|text| Pattern::parse(text))
                .collect::<Result<_, _>>()?)
        };
        let mut settings = Settings::new(from, to);
        settings.selection = Selection {
            include: patterns(&self.include)?,
            exclude: patterns(&self.exclude)?,
        };
        settings.mapping = Mapping::parse(&self.map)?;
        settings.filter = self.filter.as_deref().map(parse_filter).transpose()?;
        settings.comparison = match self.ignore_field_order {
            true => Comparison::IgnoreFieldOrder,
            false => Comparison::Bytes,
        };
        settings.partitioning = match self.partition_by.as_deref() {
            None | Some("id") => Partitioning::Id,
            Some("natural") => Partitioning::Natural,
            Some(other) => bail!("partition-by is {other:?}, but it must be id or natural"),
        };
        settings.changes = match self.changes.as_deref() {
            None | Some("stream") => Changes::Stream,
            Some("oplog") => Changes::Oplog,
            Some(other) => bail!("changes is {other:?}, but it must be stream or oplog"),
        };
        settings.hash = self.hash;
        settings.workers = self.workers.unwrap_or(DEFAULT_WORKERS);
        settings.partition_bytes =
            bytes("partition-mb", self.partition_mb)?.unwrap_or(DEFAULT_PARTITION_BYTES);
        settings.read_preference = self
            .read_preference
            .as_deref()
            .map(parse_read_preference)
            .transpose()?;
        settings.read_concern = self.read_concern.map(parse_read_concern).transpose()?;
        settings.bytes_per_second_max = bytes("max-mb-per-second", self.max_mb_per_second)?;
        settings.described_max = self.max_mismatches.unwrap_or(DEFAULT_DESCRIBED_MAX);
        settings.writes = match self.writes_off {
            true => Writes::Off,
            false => Writes::On,
        };
        settings.place = match (self.meta, self.state) {
            (Some(_), Some(_)) => {
                bail!("--state and --meta both say where to keep the run: give one")
            }
            (Some(uri), None) => Place::Database {
                uri,
                name: self
                    .meta_database
                    .unwrap_or_else(|| DEFAULT_META_DATABASE.to_owned()),
            },
            (None, state) => {
                Place::Directory(state.unwrap_or_else(|| DEFAULT_STATE_DIRECTORY.into()))
            }
        };
        settings.restart = self.restart;
        settings.listen = self.listen;
        settings.wait = self.wait;
        if let Some(seconds) = self.generation_pause {
            if !(0.0..=PAUSE_SECONDS_MAX).contains(&seconds) {
                bail!(
                    "generation-pause is {seconds:?}, but it must be between 0 and {PAUSE_SECONDS_MAX} seconds"
                );
            }
            settings.generation_pause = Duration::from_secs_f64(seconds);
        }
        settings.display = match (self.quiet, std::io::stderr().is_terminal()) {
            (true, _) => Display::Silent,
            (false, true) => Display::Bars,
            (false, false) => Display::Lines,
        };
        Ok(settings)
    }
}

fn read_file(path: &Path) -> Result<VerifyOptions> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        let (path, why) = (path.display(), error.message());
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        anyhow!("line {line} of the configuration file {path} is not valid: {why}")
    })
}

fn bytes(name: &str, megabytes: Option<f64>) -> Result<Option<u64>> {
    match megabytes {
        Some(given) if given > 0.0 && given < MEGABYTES_MIN => {
            bail!("{name} is {given:?}, which is less than a byte: it must be at least 0.000001")
        }
        Some(given) if given.is_nan() || given <= 0.0 => {
            bail!("{name} is {given:?}, but it must be greater than zero")
        }
        Some(given) if given > MEGABYTES_MAX => {
            bail!("{name} is {given:?}, but it must be at most {MEGABYTES_MAX}")
        }
        given => Ok(given.map(|given| (given * MEGABYTE) as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, flags: VerifyOptions) -> Result<Settings> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("verify.toml");
        std::fs::write(&path, text)?;
        let config = Some(path);
        VerifyOptions { config, ..flags }.with_file()?.settle()
    }

    const CLUSTERS: &str = "from = 'mongodb://a'\nto = 'mongodb://b'\nwrites_off = true\n";

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let flags = VerifyOptions {
            to: Some("mongodb://c".to_owned()),
            workers: Some(7),
            ..VerifyOptions::default()
        };
        let file = format!(
            "{CLUSTERS}workers = 2\npartition_mb = 1.5\ninclude = ['shop']\nfilter = '{{}}'"
        );
        let settings = with_file(&file, flags).unwrap();
        assert_eq!(
            (settings.from.as_str(), settings.to.as_str()),
            ("mongodb://a", "mongodb://c")
        );
        assert_eq!((settings.workers, settings.partition_bytes), (7, 1_500_000));
        assert_eq!(settings.selection.include.len(), 1);
        assert_eq!(settings.described_max, DEFAULT_DESCRIBED_MAX);
        assert_eq!(
            settings.place,
            Place::Directory(DEFAULT_STATE_DIRECTORY.into())
        );
        assert_eq!(settings.writes, Writes::Off);
    }

    #[test]
    fn a_flag_for_the_place_wins_over_either_in_the_file() {
        for kept in ["state = 'kept'", "meta = 'mongodb://kept'"] {
            let file = format!("{CLUSTERS}{kept}");
            let flags = VerifyOptions {
                state: Some("given".into()),
                ..VerifyOptions::default()
            };
            let settings = with_file(&file, flags).unwrap();
            assert_eq!(settings.place, Place::Directory("given".into()));
            let flags = VerifyOptions {
                meta: Some("mongodb://given".to_owned()),
                ..VerifyOptions::default()
            };
            let settings = with_file(&file, flags).unwrap();
            let expected = Place::Database {
                uri: "mongodb://given".to_owned(),
                name: DEFAULT_META_DATABASE.to_owned(),
            };
            assert_eq!(settings.place, expected);
        }
    }

    #[test]
    fn mistakes_are_named_with_what_to_do() {
        let mistakes = [
            ("form = 'x'", "form"),
            ("to = 'x'", "--from is missing"),
            ("from = 'x'", "--to is missing"),
        ];
        for (text, expected) in mistakes {
            let shown = format!(
                "{:#}",
                with_file(text, VerifyOptions::default()).unwrap_err()
            );
            assert!(shown.contains(expected), "{text}: {shown}");
        }
        let mistakes = [
            ("include = ['.']", "database.collection"),
            ("map = ['a']", "database=database"),
            ("filter = '['", "extended JSON"),
            ("partition_mb = 0.0", "greater than zero"),
            ("max_mb_per_second = -1.0", "greater than zero"),
            ("read_preference = 'best'", "secondaryPreferred"),
            ("read_concern = 'best'", "majority"),
            ("partition_by = 'size'", "id or natural"),
            ("state = 'a'\nmeta = 'b'", "give one"),
            ("generation_pause = -1.0", "between 0 and 86400 seconds"),
            (
                "generation_pause = 1e300",
                "is 1e300, but it must be between",
            ),
            ("generation_pause = nan", "between 0 and 86400 seconds"),
            (
                "max_mb_per_second = 1e-7",
                "is 1e-7, which is less than a byte",
            ),
            (
                "max_mb_per_second = 1e300",
                "is 1e300, but it must be at most",
            ),
            ("partition_mb = inf", "it must be at most 1000000000000"),
            ("partition_mb = nan", "greater than zero"),
            ("map = ['a=b', 'a=c']", "about the same name"),
        ];
        for (text, expected) in mistakes {
            let text = format!("{CLUSTERS}{text}");
            let shown = format!(
                "{:#}",
                with_file(&text, VerifyOptions::default()).unwrap_err()
            );
            assert!(shown.contains(expected), "{text}: {shown}");
        }
    }
}
