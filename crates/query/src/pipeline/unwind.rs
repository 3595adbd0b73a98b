//! `$unwind`: a document for each element of an array.

use super::nested_field::{plain_field, with_field};
use super::source::{Advance, Source};
use crate::expression::FieldPath;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};

#[derive(Clone, Debug)]
pub struct Unwind {
    path: FieldPath,
    index: Option<FieldPath>,
    preserve: bool,
}

impl Unwind {
    pub(super) fn parse(spec: ValueRef<'_>) -> Result<Self, Error> {
        let (mut path, mut index, mut preserve) = ("", None, false);
        match spec {
            ValueRef::String(text) => path = text,
            ValueRef::Document(doc) => {
                for element in doc.iter() {
                    let value = element.value();
                    match (element.key(), value) {
                        ("path", ValueRef::String(text)) => path = text,
                        ("path", _) => {
                            return Err(expected(28808, "a string as the path for", value));
                        }
                        ("preserveNullAndEmptyArrays", ValueRef::Boolean(flag)) => preserve = flag,
                        ("preserveNullAndEmptyArrays", _) => {
                            return Err(expected(
                                28809,
                                "a boolean for the preserveNullAndEmptyArrays option to",
                                value,
                            ));
                        }
                        ("includeArrayIndex", ValueRef::String(name)) if !name.is_empty() => {
                            index = Some(name);
                        }
                        ("includeArrayIndex", _) => {
                            return Err(expected(
                                28810,
                                "a non-empty string for the includeArrayIndex  option to",
                                value,
                            ));
                        }
                        (unknown, _) => {
                            return Err(Error::location(
                                28811,
                                format!("unrecognized option to $unwind stage: {unknown}"),
                            ));
                        }
                    }
                }
            }
            other => {
                return Err(Error::location(
                    15981,
                    format!(
                        "expected either a string or an object as specification for $unwind \
                         stage, got {}",
                        other.kind().name()
                    ),
                ));
            }
        }
        if path.is_empty() {
            return Err(Error::location(28812, "no path specified to $unwind stage"));
        }
        let Some(path) = path.strip_prefix('$') else {
            return Err(Error::location(
                28818,
                format!("path option to $unwind stage should be prefixed with a '$': {path}"),
            ));
        };
        if path.contains('\0') {
            return Err(Error::location(
                16419,
                "field path must not contain embedded null characters",
            ));
        }
        if let Some(name) = index
            && name.starts_with('$')
        {
            return Err(Error::location(
                28822,
                format!(
                    "includeArrayIndex option to $unwind stage should not be prefixed with a '$': \
                     {name}"
                ),
            ));
        }
        Ok(Self {
            path: FieldPath::parse(path)?,
            index: index.map(FieldPath::parse).transpose()?,
            preserve,
        })
    }

    pub(super) fn path(&self) -> &FieldPath {
        &self.path
    }

    /// Whether fields under this top-level name come out as they went in.
    pub(super) fn keeps(&self, name: &str) -> bool {
        let touches = |path: &FieldPath| *path.names()[0] == *name;
        !touches(&self.path) && !self.index.as_ref().is_some_and(touches)
    }

    pub(super) fn preserves(&self) -> bool {
        self.preserve
    }

    /// Everything but the path, said or not.
    pub(super) fn write_options(&self, out: &mut DocWriter) {
        out.append("preserveNullAndEmptyArrays", self.preserve);
        if let Some(index) = &self.index {
            out.append("includeArrayIndex", index.names().join(".").as_str());
        }
    }

    pub(super) fn with_index(&self, doc: DocBuf, position: ValueRef<'_>) -> DocBuf {
        match &self.index {
            Some(path) => with_field(doc.as_doc(), path.names(), Some(position)),
            None => doc,
        }
    }
}

fn expected(code: i32, what: &str, found: ValueRef<'_>) -> Error {
    Error::location(
        code,
        format!("expected {what} $unwind stage, got {}", found.kind().name()),
    )
}

pub(super) struct Unwinding {
    input: Box<dyn Source>,
    unwind: Unwind,
    /// The rest of the array under way.
    elements: std::vec::IntoIter<Value>,
    next_index: i64,
    current: DocBuf,
}

impl Unwinding {
    pub(super) fn new(input: Box<dyn Source>, unwind: Unwind) -> Self {
        Self {
            input,
            unwind,
            elements: Vec::new().into_iter(),
            next_index: 0,
            current: DocBuf::new(),
        }
    }
}

impl Source for Unwinding {
    fn advance(&mut self) -> Result<Advance, Error> {
        loop {
            if let Some(element) = self.elements.next() {
                let doc = with_field(
                    self.input.current(),
                    self.unwind.path.names(),
                    Some(element.as_ref()),
                );
                self.current = self
                    .unwind
                    .with_index(doc, ValueRef::Int64(self.next_index));
                self.next_index += 1;
                return Ok(Advance::Document);
            }
            match self.input.advance()? {
                Advance::Document => {}
                other => return Ok(other),
            }
            let doc = self.input.current();
            let kept = match plain_field(doc, self.unwind.path.names()) {
                Some(ValueRef::Array(array)) if !array.is_empty() => {
                    self.elements = array
                        .iter()
                        .map(|value| value.to_owned())
                        .collect::<Vec<_>>()
                        .into_iter();
                    self.next_index = 0;
                    continue;
                }
                Some(ValueRef::Array(_)) => self
                    .unwind
                    .preserve
                    .then(|| with_field(doc, self.unwind.path.names(), None)),
                None | Some(ValueRef::Null | ValueRef::Undefined) => {
                    self.unwind.preserve.then(|| doc.to_owned())
                }
                Some(_) => Some(doc.to_owned()),
            };
            if let Some(doc) = kept {
                self.current = self.unwind.with_index(doc, ValueRef::Null);
                return Ok(Advance::Document);
            }
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
