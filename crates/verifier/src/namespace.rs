//! Namespaces: which are verified, and what they are called on the other side.
//!
//! A pattern is `database.collection` with `*` for any text and `?` for one character; without a dot
//! it stands for all collections of a database. Patterns are about names of the *source*.
//!
//! A mapping renames a collection (`a.x=b.y`) or a whole database (`a=b`) on the destination;
//! the rule for a collection wins. Seen from the destination the mapping is undone, so that a
//! collection that only the destination has is known by the name it would have on the source. One
//! whose name there belongs to something else (`a.x` when `a.x` went to `b.y`) has no such name,
//! and is extra under its own.
//!
//! Never verified: the databases `admin`, `config` and `local`, and collections named `system.…`,
//! except `system.js`, which holds users' functions.

use crate::error::VerifyError;
use std::collections::BTreeSet;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    pub database: String,
    pub collection: String,
}

impl Namespace {
    pub fn new(database: impl Into<String>, collection: impl Into<String>) -> Namespace {
        Namespace {
            database: database.into(),
            collection: collection.into(),
        }
    }

    /// Whether the server keeps it for itself.
    pub fn is_internal(&self) -> bool {
        matches!(self.database.as_str(), "admin" | "config" | "local")
            || (self.collection.starts_with("system.") && self.collection != "system.js")
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.collection.as_str() {
            // A whole database, as some events are about.
            "" => f.write_str(&self.database),
            collection => write!(f, "{}.{collection}", self.database),
        }
    }
}

/// A pattern over namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    database: String,
    collection: String,
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Pattern, VerifyError> {
        let (database, collection) = text.split_once('.').unwrap_or((text, "*"));
        if database.is_empty() || collection.is_empty() {
            return Err(VerifyError::settings(format!(
                "the pattern {text:?} names no collection: write database.collection, database.* or database"
            )));
        }
        Ok(Pattern {
            database: database.to_owned(),
            collection: collection.to_owned(),
        })
    }

    pub fn matches(&self, namespace: &Namespace) -> bool {
        matches_text(self.database.as_bytes(), namespace.database.as_bytes())
            && matches_text(self.collection.as_bytes(), namespace.collection.as_bytes())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// `*` is any text, `?` is one byte.
fn matches_text(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at_pattern, mut at_text) = (0, 0);
    // Where the last star stands, and how far it reaches so far.
    let mut star: Option<(usize, usize)> = None;
    while at_text < text.len() {
        match pattern.get(at_pattern) {
            Some(b'*') => {
                star = Some((at_pattern, at_text));
                at_pattern += 1;
            }
            Some(&wanted) if wanted == b'?' || wanted == text[at_text] => {
                at_pattern += 1;
                at_text += 1;
            }
            Some(_) | None => match star {
                Some((place, reach)) => {
                    star = Some((place, reach + 1));
                    at_pattern = place + 1;
                    at_text = reach + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at_pattern..].iter().all(|&left| left == b'*')
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Database { from: String, to: String },
    Collection { from: Namespace, to: Namespace },
}

impl Rule {
    fn is_about_the_same(&self, other: &Rule) -> bool {
        match (self, other) {
            (Rule::Database { from, .. }, Rule::Database { from: other, .. }) => from == other,
            (Rule::Collection { from, .. }, Rule::Collection { from: other, .. }) => from == other,
            (Rule::Database { .. }, Rule::Collection { .. })
            | (Rule::Collection { .. }, Rule::Database { .. }) => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Database { from, to } => write!(f, "{from}={to}"),
            Rule::Collection { from, to } => write!(f, "{from}={to}"),
        }
    }
}

/// Names of the source, as the destination has them.
#[derive(Debug, Clone, Default)]
pub struct Mapping {
    rules: Vec<Rule>,
}

impl Mapping {
    pub fn parse(texts: &[String]) -> Result<Mapping, VerifyError> {
        let mut rules: Vec<Rule> = Vec::new();
        for text in texts {
            let rule = parse_rule(text).ok_or_else(|| {
                VerifyError::settings(format!(
                    "the mapping {text:?} is not understood: write database=database or database.collection=database.collection"
                ))
            })?;
            let same = |known: &&Rule| known.is_about_the_same(&rule);
            if let Some(known) = rules.iter().find(same) {
                return Err(VerifyError::settings(format!(
                    "--map {known} and --map {rule} are about the same name: give it one name on the destination"
                )));
            }
            rules.push(rule);
        }
        Ok(Mapping { rules })
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, as people write them.
    pub fn texts(&self) -> Vec<String> {
        self.rules.iter().map(ToString::to_string).collect()
    }

    /// The rules that are about none of these names of the source.
    pub fn idle(&self, names: &BTreeSet<Namespace>) -> Vec<String> {
        let is_about = |rule: &Rule, name: &Namespace| match rule {
            Rule::Database { from, .. } => *from == name.database,
            Rule::Collection { from, .. } => from == name,
        };
        let idle = |rule: &&Rule| !names.iter().any(|name| is_about(rule, name));
        let rules = self.rules.iter().filter(idle);
        rules.map(ToString::to_string).collect()
    }

    pub fn to_destination(&self, source: &Namespace) -> Namespace {
        let collection = self.rules.iter().find_map(|rule| match rule {
            Rule::Collection { from, to } if from == source => Some(to.clone()),
            Rule::Collection { .. } | Rule::Database { .. } => None,
        });
        let database = || {
            self.rules.iter().find_map(|rule| match rule {
                Rule::Database { from, to } if *from == source.database => {
                    Some(Namespace::new(to, &source.collection))
                }
                Rule::Collection { .. } | Rule::Database { .. } => None,
            })
        };
        collection
            .or_else(database)
            .unwrap_or_else(|| source.clone())
    }

    /// The databases of the destination that collections of this one may be in.
    pub fn databases_of(&self, database: &str) -> BTreeSet<String> {
        let whole = self.to_destination(&Namespace::new(database, "")).database;
        let single = self.rules.iter().filter_map(|rule| match rule {
            Rule::Collection { from, to } if from.database == database => Some(to.database.clone()),
            Rule::Collection { .. } | Rule::Database { .. } => None,
        });
        std::iter::once(whole).chain(single).collect()
    }

    /// The name on the source of what the destination calls so; its own if there is none.
    pub fn to_source(&self, destination: &Namespace) -> Namespace {
        let candidates = self.rules.iter().filter_map(|rule| match rule {
            Rule::Collection { from, to } if to == destination => Some(from.clone()),
            Rule::Database { from, to } if *to == destination.database => {
                Some(Namespace::new(from, &destination.collection))
            }
            Rule::Collection { .. } | Rule::Database { .. } => None,
        });
        candidates
            .into_iter()
            .find(|candidate| self.to_destination(candidate) == *destination)
            .unwrap_or_else(|| destination.clone())
    }
}

fn parse_rule(text: &str) -> Option<Rule> {
    let (from, to) = text.split_once('=')?;
    match (from.split_once('.'), to.split_once('.')) {
        (None, None) if !from.is_empty() && !to.is_empty() => Some(Rule::Database {
            from: from.to_owned(),
            to: to.to_owned(),
        }),
        (Some((from_database, from)), Some((to_database, to))) => {
            let named = [from_database, from, to_database, to];
            named
                .iter()
                .all(|part| !part.is_empty())
                .then(|| Rule::Collection {
                    from: Namespace::new(from_database, from),
                    to: Namespace::new(to_database, to),
                })
        }
        (_, _) => None,
    }
}

/// Which namespaces of the source are verified.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Empty means all.
    pub include: Vec<Pattern>,
    pub exclude: Vec<Pattern>,
}

impl Selection {
    /// The databases that are verified, if they are named one by one.
    pub fn named_databases(&self) -> Option<BTreeSet<String>> {
        let named = self.include.iter().map(|pattern| {
            let database = &pattern.database;
            (!database.contains(['*', '?'])).then(|| database.clone())
        });
        let named: BTreeSet<String> = named.collect::<Option<_>>()?;
        (!named.is_empty()).then_some(named)
    }

    /// The patterns that leave out none of these names.
    pub fn idle_excludes(&self, names: &BTreeSet<Namespace>) -> Vec<String> {
        let idle = |pattern: &&Pattern| !names.iter().any(|name| pattern.matches(name));
        let patterns = self.exclude.iter().filter(idle);
        patterns.map(ToString::to_string).collect()
    }

    pub fn selects(&self, namespace: &Namespace) -> bool {
        let included =
            self.include.is_empty() || self.include.iter().any(|one| one.matches(namespace));
        included
            && !namespace.is_internal()
            && !self.exclude.iter().any(|one| one.matches(namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_nothing_is_told() {
        let names = BTreeSet::from([Namespace::new("a", "x"), Namespace::new("b", "y")]);
        let rules = ["a=c", "b.y=b.z", "b.x=b.w", "d=e"].map(str::to_owned);
        let mapping = Mapping::parse(&rules).unwrap();
        assert_eq!(mapping.idle(&names), ["b.x=b.w", "d=e"]);
        let excludes = ["a", "*.y", "a.y", "admin"];
        let selection = Selection {
            include: Vec::new(),
            exclude: excludes.map(|text| Pattern::parse(text).unwrap()).into(),
        };
        assert_eq!(selection.idle_excludes(&names), ["a.y", "admin.*"]);
        assert_eq!(Namespace::new("a", "").to_string(), "a");
        assert_eq!(
            names.first().map(ToString::to_string).as_deref(),
            Some("a.x")
        );
    }

    fn namespace(text: &str) -> Namespace {
        let (database, collection) = text.split_once('.').unwrap();
        Namespace::new(database, collection)
    }

    #[test]
    fn patterns_match() {
        let check = |pattern: &str, name: &str, expected: bool| {
            let pattern = Pattern::parse(pattern).unwrap();
            assert_eq!(
                pattern.matches(&namespace(name)),
                expected,
                "{pattern} {name}"
            );
        };
        check("shop", "shop.orders", true);
        check("shop", "shop2.orders", false);
        check("shop.*", "shop.a.b", true);
        check("sh*.ord?rs", "shop.orders", true);
        check("*.*s", "shop.orders.x", false);
        check("*.a*b*c", "x.aXbYc", true);
        check("*.a*b*c", "x.aXcYb", false);
        assert!(Pattern::parse(".x").is_err());
        assert!(Pattern::parse("").is_err());
    }

    #[test]
    fn mappings_go_there_and_back() {
        let texts = ["a=b".to_owned(), "a.x=c.y".to_owned()];
        let mapping = Mapping::parse(&texts).unwrap();
        let check = |source: &str, destination: &str| {
            assert_eq!(
                mapping.to_destination(&namespace(source)),
                namespace(destination)
            );
            assert_eq!(
                mapping.to_source(&namespace(destination)),
                namespace(source)
            );
        };
        check("a.z", "b.z");
        check("a.x", "c.y");
        check("d.e", "d.e");
        let there = mapping.databases_of("a");
        assert_eq!(there.into_iter().collect::<Vec<_>>(), ["b", "c"]);
        // What only the destination has, under a name that went elsewhere.
        assert_eq!(mapping.to_source(&namespace("b.x")), namespace("b.x"));
        assert_eq!(mapping.to_source(&namespace("a.z")), namespace("a.z"));
        for wrong in ["a", "a=", "a.b=c", "=b", "a.=b.c"] {
            assert!(Mapping::parse(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        for twice in [["a=b", "a=c"], ["a.x=b.y", "a.x=b.z"], ["a=b", "a=b"]] {
            let error = Mapping::parse(&twice.map(str::to_owned)).unwrap_err();
            assert!(error.to_string().contains("the same name"), "{error}");
        }
        // A rule for a collection is an exception from that for its database.
        assert!(Mapping::parse(&["a=b", "a.x=b.y"].map(str::to_owned)).is_ok());
    }

    #[test]
    fn databases_are_named_or_not() {
        let check = |include: &[&str], expected: Option<&str>| {
            let include = include.iter().map(|text| Pattern::parse(text).unwrap());
            let selection = Selection {
                include: include.collect(),
                exclude: Vec::new(),
            };
            let named = selection.named_databases();
            let named = named.map(|names| names.into_iter().collect::<Vec<_>>().join(" "));
            assert_eq!(named.as_deref(), expected);
        };
        check(&[], None);
        check(&["shop", "a.b*"], Some("a shop"));
        check(&["shop", "*.b"], None);
    }

    #[test]
    fn internal_namespaces_are_left_out() {
        let all = Selection::default();
        for (name, expected) in [
            ("shop.orders", true),
            ("shop.system.js", true),
            ("shop.system.views", false),
            ("admin.users", false),
            ("config.chunks", false),
            ("local.oplog.rs", false),
        ] {
            assert_eq!(all.selects(&namespace(name)), expected, "{name}");
        }
    }
}
