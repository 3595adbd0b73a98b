//! Regular expressions with the semantics of PCRE, as MongoDB has them.
//!
//! Two engines. A pattern that both read alike is translated for the `regex`
//! crate, which never backtracks; every other one goes to PCRE2, bounded by a
//! match limit. The translation (`plain`) is conservative: what it does not
//! know, it leaves to PCRE2, which also has the last word on what is invalid.
//!
//! Exceeding the match limit means *no match*, not an error; MongoDB does the
//! same.
//!
//! Left out: the texts of MongoDB's messages about invalid patterns, which come
//! from an older PCRE and differ in wording.

mod plain;
mod prefix;

pub use prefix::Prefix;

use model::Error;
use model::bson::{Value, ValueRef};
use std::fmt;

/// Bounds the work of one match; an honest pattern stays far below.
const MATCH_LIMIT: u32 = 1_000_000;

/// A compiled regular expression together with its source.
#[derive(Clone)]
pub struct Regex {
    pattern: Box<str>,
    options: Box<str>,
    engine: Engine,
}

#[derive(Clone)]
enum Engine {
    Plain(regex::Regex),
    Perl(pcre2::bytes::Regex),
}

/// The options that change what a pattern means.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Options {
    pub case_insensitive: bool,
    pub multi_line: bool,
    pub dot_matches_newline: bool,
    pub extended: bool,
}

impl Options {
    /// Reads `imsx`; `u` is accepted and means what is always done.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut options = Self::default();
        for option in text.chars() {
            match option {
                'i' => options.case_insensitive = true,
                'm' => options.multi_line = true,
                's' => options.dot_matches_newline = true,
                'x' => options.extended = true,
                'u' => {}
                _ => {
                    return Err(Error::location(
                        51108,
                        format!(" invalid flag in regex options: {option}"),
                    ));
                }
            }
        }
        Ok(options)
    }
}

impl Regex {
    pub fn new(pattern: &str, options: &str) -> Result<Self, Error> {
        if pattern.contains('\0') {
            return Err(Error::bad_value(
                "Regular expression cannot contain an embedded null byte",
            ));
        }
        if options.contains('\0') {
            return Err(Error::location(51108, " invalid flag in regex options: \0"));
        }
        let parsed = Options::parse(options)?;
        Ok(Self {
            pattern: pattern.into(),
            options: options.into(),
            engine: compile(pattern, parsed)?,
        })
    }

    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The options as they were written.
    pub fn options(&self) -> &str {
        &self.options
    }

    pub fn to_value(&self) -> Value {
        Value::Regex {
            pattern: self.pattern.to_string(),
            options: self.options.to_string(),
        }
    }

    pub fn is_match(&self, text: &str) -> bool {
        match &self.engine {
            Engine::Plain(engine) => engine.is_match(text),
            Engine::Perl(engine) => engine.is_match(text.as_bytes()).unwrap_or(false),
        }
    }

    /// Strings and symbols that match, and the same regular expression itself.
    pub fn matches_value(&self, value: ValueRef<'_>) -> bool {
        match value {
            ValueRef::String(text) | ValueRef::Symbol(text) => self.is_match(text),
            ValueRef::Regex { pattern, options } => {
                pattern == &*self.pattern && options == &*self.options
            }
            _ => false,
        }
    }

    /// What every match begins with, if the pattern is anchored: the bounds of
    /// an index scan.
    pub fn prefix(&self) -> Option<Prefix> {
        // The options were accepted when the expression was compiled.
        let options = Options::parse(&self.options).unwrap_or_default();
        prefix::prefix(&self.pattern, options)
    }
}

fn compile(pattern: &str, options: Options) -> Result<Engine, Error> {
    if let Some(translated) = plain::translate(pattern, options) {
        let engine = regex::RegexBuilder::new(&translated)
            .case_insensitive(options.case_insensitive)
            .dot_matches_new_line(options.dot_matches_newline)
            .size_limit(1 << 20)
            .build();
        if let Ok(engine) = engine {
            return Ok(Engine::Plain(engine));
        }
    }
    // The older PCRE's name for a mode that is always on here.
    let pattern = pattern.strip_prefix("(*UTF8)").unwrap_or(pattern);
    let build = |pattern: &str| {
        pcre2::bytes::RegexBuilder::new()
            .utf(true)
            .caseless(options.case_insensitive)
            .multi_line(options.multi_line)
            .dotall(options.dot_matches_newline)
            .extended(options.extended)
            .jit_if_available(true)
            .build(&format!("(*LIMIT_MATCH={MATCH_LIMIT}){pattern}"))
            .map_err(|error| {
                Error::location(51091, format!("Regular expression is invalid: {error}"))
            })
    };
    // The real server also compiles every pattern inside a group, so that a
    // comment must end before the pattern does.
    if pattern.contains('#') {
        build(&format!("(?:{pattern})"))?;
    }
    build(pattern).map(Engine::Perl)
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern && self.options == other.options
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.pattern, self.options)
    }
}

#[cfg(test)]
mod tests;
