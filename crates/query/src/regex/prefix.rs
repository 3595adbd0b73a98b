//! The literal beginning of an anchored pattern, from which index bounds follow.
//!
//! `/^abc/` can only match strings from "abc" up to, not including, "abd". The
//! prefix is *exact* if every string that begins with it matches, so that the
//! bounds alone answer the query.
//!
//! Conservative: an alternation anywhere, an option that changes letters or
//! lines, or anything unusual near the beginning, gives a shorter prefix or none.

use super::Options;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Never empty.
    pub text: String,
    /// Whether the prefix alone decides.
    pub is_exact: bool,
}

pub(super) fn prefix(pattern: &str, options: Options) -> Option<Prefix> {
    if options.case_insensitive || options.extended {
        return None;
    }
    let anchored = match pattern.strip_prefix(r"\A") {
        Some(anchored) => anchored,
        // In multi-line mode `^` also stands after each newline.
        None if options.multi_line => return None,
        None => pattern.strip_prefix('^')?,
    };
    if anchored.contains('|') {
        return None;
    }
    let mut text = String::new();
    let mut is_exact = true;
    let mut rest = anchored.chars();
    while let Some(symbol) = rest.next() {
        match symbol {
            // The character before may be absent, so it is no part of the prefix.
            '*' | '?' | '{' => {
                text.pop();
                is_exact = false;
            }
            '\\' => match rest.next() {
                Some(escaped) if escaped.is_ascii_punctuation() => {
                    text.push(escaped);
                    continue;
                }
                _ => is_exact = false,
            },
            '+' | '.' | '^' | '$' | '(' | ')' | '[' => is_exact = false,
            literal => {
                text.push(literal);
                continue;
            }
        }
        break;
    }
    (!text.is_empty()).then_some(Prefix { text, is_exact })
}
