//! Golden scripts: one move, event by event, and what each of them leads to.
//!
//! ```text
//!   # What must not happen.            the first line
//!   donor begins                       what happens, a line each
//!   recipient hears receive
//!   ---
//!   donor: Copying [receive ..]        the state from then on, and what is sent once it is durable
//!   recipient: Receiving, has 2 [..]
//! ```
//!
//! There are as many such blocks in a script as it likes, with empty lines between them. Events are the real
//! [`Donor::step`](super::super::donor::Donor::step), [`Recipient::step`](super::super::recipient::Recipient::step)
//! and [`Authority`](crate::authority::Authority); what means nothing in a phase is *ignored*, and shown. The range
//! has two documents on A when a script begins, and positions of A's log count the writes to it.
//!
//! | line | what happens |
//! | --- | --- |
//! | `given copying`, `writes blocked`, `ready`, `reads blocked`, `committed`, `released` | all up to there, without a fault: see [`STEPS`] |
//! | `donor begins`, `is almost caught up`, `is drained`, `is to abort`, `asks what stands` | |
//! | `recipient copies`, `copies all but one`, `aligns`, `fails`, `forgets` | |
//! | `.. hears ready`, `.. hears the first receive` | a message arrives that was sent: the latest of that name, or the first. It may arrive again, or never |
//! | `.. hears nothing` | a timer |
//! | `.. restarts` | a new primary goes on from the document, which is a timer for the protocol |
//! | `.., but dies before it is written`, `.., but dies before it is sent` | the primary dies in the middle of that step |
//! | `authority hears commit`, `settle` | it decides, and the answer goes to whoever asked |
//! | `release is lost` | for the reader: it was sent |
//! | `client writes`, `client reads` | wherever it is served |
//! | `catalog is changing`, `catalog has changed`, `B is being emptied`, `copy is damaged` | |
//! | `range is empty` | from the beginning |
//! | `range goes on`, `dead copy is removed` | B gives the range to C, and what is left on B is removed |
//!
//! What is modelled here and not in the protocol: which shard stores and owns what, and what a shell says of a move
//! that it has forgotten (`stage.rs`). `REWRITE_SCRIPTS=1` writes what came out into the scripts: look at the
//! difference before you believe it.

mod stage;
mod transitions;
mod words;

use super::super::{donor, recipient};
use stage::{Death, Party, Stage};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const REWRITE: &str = "REWRITE_SCRIPTS";
const DIVIDER: &str = "---";

/// The way of a move that nothing disturbs, which `given` goes up to a place.
const STEPS: [(&str, &[&str]); 6] = [
    (
        "copying",
        &[
            "donor begins",
            "recipient hears receive",
            "recipient aligns",
            "recipient copies",
        ],
    ),
    (
        "writes blocked",
        &["donor is almost caught up", "donor is drained"],
    ),
    ("ready", &["recipient hears finish"]),
    ("reads blocked", &["donor hears ready"]),
    (
        "committed",
        &["authority hears commit", "donor hears answer"],
    ),
    (
        "released",
        &["recipient hears release", "donor hears released"],
    ),
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/migration/tests/scripts")
}

/// Every script, by name.
fn scripts() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory()).expect("the scripts are there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut scripts: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "script"))
        .collect();
    scripts.sort();
    scripts
}

fn name(path: &Path) -> String {
    let name = path.file_name().expect("a file");
    name.to_string_lossy().into_owned()
}

/// Plays a script: what it says, and what comes out.
fn played(path: &Path) -> (String, String, Stage) {
    let script = std::fs::read_to_string(path).expect("a readable script");
    let mut stage = Stage::new();
    let played = play(&mut stage, &script);
    let played = played.unwrap_or_else(|error| panic!("{}, {error}", name(path)));
    (script, played, stage)
}

/// Whether a script says what must not happen, and comes out as it says.
fn check(path: &Path) {
    let (script, played, _) = played(path);
    let name = name(path);
    assert!(script.starts_with("# "), "{name} does not say what for");
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(path, &played).expect("a writable script");
        return;
    }
    assert!(
        played == script,
        "{name} comes out differently:\n{}",
        difference(&script, &played)
    );
}

/// The script with what comes out instead of what it expects.
fn play(stage: &mut Stage, script: &str) -> Result<String, String> {
    let mut played = String::new();
    let mut came_out: Vec<String> = Vec::new();
    let mut is_expected = false;
    for (number, line) in script.lines().enumerate() {
        match line {
            DIVIDER => {
                is_expected = true;
                played.push_str(DIVIDER);
                played.push('\n');
                played.extend(came_out.drain(..).map(|line| line + "\n"));
            }
            "" => {
                is_expected = false;
                played.push('\n');
            }
            _ if is_expected => {}
            _ => {
                played.push_str(line);
                played.push('\n');
                if !line.starts_with('#') {
                    let happened = happens(stage, line);
                    came_out.push(happened.map_err(|why| format!("line {}: {why}", number + 1))?);
                }
            }
        }
    }
    match came_out.is_empty() {
        true => Ok(played),
        false => Err(format!("what follows the last {DIVIDER} is not compared")),
    }
}

fn given(stage: &mut Stage, place: &str) -> Result<String, String> {
    let last = STEPS.iter().position(|(name, _)| *name == place);
    let last = last.ok_or_else(|| format!("there is no such place: {place}"))?;
    for line in STEPS[..=last].iter().flat_map(|(_, lines)| *lines) {
        happens(stage, line)?;
    }
    Ok(stage.states())
}

/// One line of input.
fn happens(stage: &mut Stage, line: &str) -> Result<String, String> {
    let (event, death) = match line.split_once(", but ") {
        None => (line, Death::None),
        Some((event, "dies before it is written")) => (event, Death::BeforeItIsWritten),
        Some((event, "dies before it is sent")) => (event, Death::BeforeItIsSent),
        Some(_) => return Err(format!("nobody dies like that: {line}")),
    };
    let unknown = || format!("nothing is known of: {line}");
    let (who, what) = event.split_once(' ').ok_or_else(unknown)?;
    if who == "given" {
        return given(stage, what);
    }
    if let Some(message) = what.strip_prefix("hears ").filter(|it| *it != "nothing") {
        return hears(stage, who, message, death);
    }
    if what == "is lost" {
        let sent = stage.find(None, who, false);
        return sent
            .map(|_| format!("({who} is lost)"))
            .ok_or_else(|| format!("nobody has sent: {who}"));
    }
    Ok(match (who, what) {
        ("donor", "begins") => stage.donor_begins(),
        ("donor", "is almost caught up") => stage.donor(donor::Event::AlmostCaughtUp, death),
        ("donor", "is drained") => stage.donor(stage.drained(), death),
        ("donor", "is to abort") => stage.donor(donor::Event::Abort, death),
        ("donor", "asks what stands") => match stage.catalog_stands() {
            Some(event) => stage.donor(event, death),
            None => "donor: no catalog stands".to_owned(),
        },
        ("donor", "hears nothing" | "restarts") => stage.donor(donor::Event::Timer, death),
        ("recipient", "copies") => stage.recipient_copies(0, death),
        ("recipient", "copies all but one") => stage.recipient_copies(1, death),
        ("recipient", "aligns") => stage.recipient_aligns(death),
        ("recipient", "fails") => stage.recipient(recipient::Event::Failed, death),
        ("recipient", "forgets") => stage.recipient_forgets()?,
        ("recipient", "hears nothing" | "restarts") => {
            stage.recipient(recipient::Event::Timer, death)
        }
        ("client", "writes") => stage.client(true),
        ("client", "reads") => stage.client(false),
        ("catalog", "is changing") => stage.catalog_changes(true),
        ("catalog", "has changed") => stage.catalog_changes(false),
        ("B", "is being emptied") => stage.b_is_emptied(),
        ("copy", "is damaged") => stage.copy_is_damaged(),
        ("range", "is empty") => stage.range_is_empty(),
        ("range", "goes on") => stage.range_goes_on()?,
        ("dead", "copy is removed") => stage.dead_copy_is_removed(),
        _ => return Err(unknown()),
    })
}

fn hears(stage: &mut Stage, who: &str, message: &str, death: Death) -> Result<String, String> {
    let (name, is_first) = match message.strip_prefix("the first ") {
        Some(name) => (name, true),
        None => (message, false),
    };
    let to = match who {
        "donor" => Party::Donor,
        "recipient" => Party::Recipient,
        "authority" => Party::Authority,
        _ => return Err(format!("nobody is called {who}")),
    };
    let sent = stage.find(Some(to), name, is_first);
    let (from, message) = sent.ok_or_else(|| format!("nobody has sent {name} to the {who}"))?;
    match to {
        Party::Donor => stage.donor_hears(message, death),
        Party::Recipient => stage.recipient_hears(message, death),
        Party::Authority => stage.authority_hears(from, message),
    }
}

/// Line by line: blocks have as many lines of each kind as before, unless somebody has edited the script.
fn difference(expected: &str, found: &str) -> String {
    let mut shown = String::new();
    let (mut expected, mut found) = (expected.lines(), found.lines());
    loop {
        match (expected.next(), found.next()) {
            (None, None) => return shown,
            (Some(line), Some(same)) if line == same => shown.push_str(&format!("    {line}\n")),
            (line, other) => {
                shown.extend(line.map(|line| format!("  - {line}\n")));
                shown.extend(other.map(|line| format!("  + {line}\n")));
            }
        }
    }
}

#[test]
fn every_script_comes_out_as_it_says() {
    let scripts = scripts();
    assert!(scripts.len() >= 15, "only {} scripts", scripts.len());
    for path in &scripts {
        check(path);
    }
}

/// What a state machine can do, some script shows.
#[test]
fn every_transition_is_in_a_script() {
    let taken = |path: &PathBuf| played(path).2.taken;
    let shown: BTreeSet<_> = scripts().iter().flat_map(taken).collect();
    let missing: Vec<_> = transitions::all().difference(&shown).cloned().collect();
    assert!(missing.is_empty(), "not in any script: {missing:#?}");
}
