//! Which names a variable may have.

use model::{Code, Error};

/// Checks the name a user gives to a variable: it starts with a lower-case
/// letter or a non-ASCII character, and goes on with letters, digits and `_`.
pub fn check_user_variable(name: &str) -> Result<(), Error> {
    check(name, |first| first.is_ascii_lowercase(), "user variable")
}

/// Checks a name where it is used: system variables have upper-case names.
pub(super) fn check_variable(name: &str) -> Result<(), Error> {
    check(name, |first| first.is_ascii_alphabetic(), "variable")
}

fn check(name: &str, starts: fn(&char) -> bool, what: &str) -> Result<(), Error> {
    let fail = |message: String| Err(Error::new(Code::FAILED_TO_PARSE, message));
    let Some(first) = name.chars().next() else {
        return fail("empty variable names are not allowed".to_owned());
    };
    if first.is_ascii() && !starts(&first) {
        return fail(format!(
            "'{name}' starts with an invalid character for a {what} name"
        ));
    }
    let odd = name
        .chars()
        .find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && *c != '_');
    match odd {
        Some(odd) => fail(format!(
            "'{name}' contains an invalid character for a variable name: '{odd}'"
        )),
        None => Ok(()),
    }
}
