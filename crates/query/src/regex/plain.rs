//! Translates the patterns that need no backtracking engine.
//!
//! Known here: literals, `.`, `^` at the start, `$` at the end, alternation,
//! groups, simple classes, counted and lazy quantifiers, `\d \s \w` and their
//! opposites, escaped punctuation. `None` for everything else.
//!
//! Where the two engines differ the translation spells PCRE's meaning out: `$`
//! also matches before a last newline, `\d`, `\s` and `\w` are ASCII.

use super::Options;

/// Counts above this make a large automaton; PCRE2 only counts.
const MAX_COUNT: u32 = 100;

/// What came before, as far as a quantifier cares.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    /// Start, `(`, `|` or `^`: nothing that could be repeated.
    Nothing,
    Item,
    Quantifier,
}

/// The pattern in the syntax of the `regex` crate.
pub(super) fn translate(pattern: &str, options: Options) -> Option<String> {
    // Multi-line anchors and free spacing differ in details.
    if options.multi_line || options.extended {
        return None;
    }
    if options.case_insensitive && !pattern.is_ascii() {
        return None;
    }
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut depth = 0u32;
    let mut last = Last::Nothing;
    let mut rest = pattern.chars().peekable();
    let mut at_start = true;
    while let Some(symbol) = rest.next() {
        let was_start = std::mem::replace(&mut at_start, false);
        last = match symbol {
            '^' if was_start => {
                out.push_str(r"\A");
                Last::Nothing
            }
            '$' if depth == 0 && rest.peek().is_none() => {
                out.push_str(r"\n?\z");
                Last::Nothing
            }
            '^' | '$' => return None,
            '.' => {
                out.push('.');
                Last::Item
            }
            '(' => {
                if rest.peek() == Some(&'*') {
                    return None;
                }
                if rest.peek() == Some(&'?') {
                    rest.next();
                    if rest.next() != Some(':') {
                        return None;
                    }
                }
                out.push_str("(?:");
                depth += 1;
                Last::Nothing
            }
            ')' => {
                depth = depth.checked_sub(1)?;
                out.push(')');
                Last::Item
            }
            '|' => {
                out.push('|');
                at_start = depth == 0;
                Last::Nothing
            }
            '*' | '+' | '?' if last == Last::Item => {
                out.push(symbol);
                Last::Quantifier
            }
            // Lazy: who matches first does not matter, only whether.
            '?' if last == Last::Quantifier => Last::Nothing,
            '*' | '+' | '?' => return None,
            '{' if last == Last::Item => {
                out.push_str(&count(&mut rest)?);
                Last::Quantifier
            }
            '{' => return None,
            '[' => {
                class(&mut rest, options, &mut out)?;
                Last::Item
            }
            '\\' => {
                escape(rest.next()?, options, &mut out)?;
                Last::Item
            }
            literal => {
                out.push_str(&regex::escape(literal.encode_utf8(&mut [0; 4])));
                Last::Item
            }
        };
    }
    (depth == 0).then_some(out)
}

type Rest<'p> = std::iter::Peekable<std::str::Chars<'p>>;

/// `{2}`, `{2,}` or `{2,5}`; the brace is already read.
fn count(rest: &mut Rest<'_>) -> Option<String> {
    let mut body = String::new();
    loop {
        match rest.next()? {
            '}' => break,
            symbol @ ('0'..='9' | ',') if body.len() < 8 => body.push(symbol),
            _ => return None,
        }
    }
    let (least, most) = match body.split_once(',') {
        None => (body.parse().ok()?, None),
        Some((least, "")) => (least.parse().ok()?, None),
        Some((least, most)) => (least.parse().ok()?, Some(most.parse().ok()?)),
    };
    let least: u32 = least;
    let is_plain =
        least <= MAX_COUNT && most.is_none_or(|most| (least..=MAX_COUNT).contains(&most));
    is_plain.then(|| format!("{{{body}}}"))
}

/// A class of letters, digits and harmless punctuation; the bracket is read.
fn class(rest: &mut Rest<'_>, options: Options, out: &mut String) -> Option<()> {
    out.push('[');
    if rest.peek() == Some(&'^') {
        rest.next();
        out.push('^');
    }
    let mut is_empty = true;
    loop {
        match rest.next()? {
            ']' if is_empty => return None,
            ']' => break,
            '\\' => class_escape(rest.next()?, options, out)?,
            first if first.is_ascii_alphanumeric() => {
                out.push(first);
                if rest.peek() == Some(&'-') {
                    rest.next();
                    let end = rest.next()?;
                    let same_kind = (first.is_ascii_digit() && end.is_ascii_digit())
                        || (first.is_ascii_lowercase() && end.is_ascii_lowercase())
                        || (first.is_ascii_uppercase() && end.is_ascii_uppercase());
                    if !same_kind || end < first {
                        return None;
                    }
                    out.push('-');
                    out.push(end);
                }
            }
            // Not the punctuation that means something to either engine.
            symbol @ (' ' | '_' | '.' | ',' | ':' | ';' | '@' | '/' | '!' | '?' | '+' | '*'
            | '(' | ')' | '\'' | '"' | '=' | '%') => out.push(symbol),
            _ => return None,
        }
        is_empty = false;
    }
    out.push(']');
    Some(())
}

fn escape(symbol: char, options: Options, out: &mut String) -> Option<()> {
    let class = match symbol {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[ \t\n\x0B\x0C\r]",
        'S' => r"[^ \t\n\x0B\x0C\r]",
        // Folding case would add the long s and the Kelvin sign to the letters.
        'w' if !options.case_insensitive => "[0-9A-Za-z_]",
        'W' if !options.case_insensitive => "[^0-9A-Za-z_]",
        't' => r"\t",
        'n' => r"\n",
        'r' => r"\r",
        _ if symbol.is_ascii_punctuation() => {
            out.push_str(&regex::escape(symbol.encode_utf8(&mut [0; 4])));
            return Some(());
        }
        _ => return None,
    };
    out.push_str(class);
    Some(())
}

fn class_escape(symbol: char, options: Options, out: &mut String) -> Option<()> {
    match symbol {
        'd' => out.push_str("0-9"),
        'w' if !options.case_insensitive => out.push_str("0-9A-Za-z_"),
        's' => out.push_str(r" \t\n\x0B\x0C\r"),
        't' => out.push_str(r"\t"),
        'n' => out.push_str(r"\n"),
        '.' | '-' | '[' | ']' | '^' | '\\' | '$' | '*' | '+' | '?' | '(' | ')' | '{' | '}'
        | '|' => {
            out.push('\\');
            out.push(symbol);
        }
        _ => return None,
    }
    Some(())
}
