//! `stmtId` and `stmtIds`: which statements of a transaction number a write
//! command holds. Drivers send neither and mean 0, 1, 2 and so on.

use super::arguments::Argument;
use crate::session::StatementIds;
use model::bson::ValueRef;
use model::{Code, Error};

/// The two arguments, as far as they were seen.
#[derive(Default)]
pub(crate) struct StatementIdArguments {
    first: Option<i32>,
    listed: Option<Vec<i32>>,
}

impl StatementIdArguments {
    pub(crate) fn first(&mut self, argument: &Argument<'_>) -> Result<(), Error> {
        match argument.value() {
            ValueRef::Int32(first) => self.first = Some(first),
            value if value.is_nullish() => {}
            _ => return Err(argument.wrong_type("int")),
        }
        Ok(())
    }

    pub(crate) fn listed(&mut self, argument: &Argument<'_>) -> Result<(), Error> {
        if argument.is_null() {
            return Ok(());
        }
        let mut listed = Vec::new();
        for element in argument.array()?.elements() {
            match element.value() {
                ValueRef::Int32(id) => listed.push(id),
                _ => return Err(argument.wrong_element(&element, "int")),
            }
        }
        self.listed = Some(listed);
        Ok(())
    }

    /// The ids of a command with so many statements.
    pub(crate) fn of_batch(self, statements: usize) -> Result<StatementIds, Error> {
        match (self.first, self.listed) {
            (None, None) => Ok(StatementIds::Counted),
            (Some(first), None) => Ok(StatementIds::From(first)),
            (Some(_), Some(_)) => Err(Error::new(
                Code::INVALID_OPTIONS,
                "May not specify both stmtId and stmtIds in write command.",
            )),
            (None, Some(listed)) if listed.len() == statements => Ok(StatementIds::Listed(listed)),
            (None, Some(listed)) => Err(Error::new(
                Code::INVALID_LENGTH,
                format!(
                    "Number of statement ids must match the number of batch entries. Got {} \
                     statement ids but {statements} operations.",
                    listed.len()
                ),
            )),
        }
    }
}
