//! A document that can be changed: expanded only along the paths touched.
//!
//! A node is either a value as it lies in the original document, or a container
//! that was opened because an update goes through it. Writing the result copies
//! untouched fields as bytes.

use model::bson::{ArrayWriter, Doc, DocBuf, DocWriter, Value, ValueRef};
use std::borrow::Cow;

#[derive(Clone, Debug)]
pub(super) enum Node<'a> {
    /// Untouched.
    Borrowed(ValueRef<'a>),
    /// Put here by a modifier.
    Owned(Value),
    Document(Fields<'a>),
    Array(Vec<Node<'a>>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) entries: Vec<(Cow<'a, str>, Node<'a>)>,
}

impl<'a> Fields<'a> {
    pub(super) fn open(doc: Doc<'a>) -> Self {
        Self {
            entries: doc
                .iter()
                .map(|e| (Cow::Borrowed(e.key()), Node::Borrowed(e.value())))
                .collect(),
        }
    }

    fn open_owned(doc: Doc<'_>) -> Fields<'static> {
        Fields {
            entries: doc
                .iter()
                .map(|e| {
                    let name = Cow::Owned(e.key().to_owned());
                    (name, Node::Owned(e.value().to_owned()))
                })
                .collect(),
        }
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|(key, _)| key == name)
    }

    pub(super) fn write(&self, writer: &mut DocWriter) {
        for (name, node) in &self.entries {
            match node {
                Node::Borrowed(value) => {
                    writer.append(name, *value);
                }
                Node::Owned(value) => {
                    writer.append(name, value);
                }
                Node::Document(fields) => {
                    writer.begin_document(name);
                    fields.write(writer);
                    writer.end();
                }
                Node::Array(elements) => {
                    writer.begin_array(name);
                    write_elements(elements, writer);
                    writer.end();
                }
            }
        }
    }

    pub(super) fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        self.write(&mut writer);
        writer.finish()
    }
}

fn write_elements(elements: &[Node<'_>], writer: &mut DocWriter) {
    for node in elements {
        match node {
            Node::Borrowed(value) => {
                writer.push(*value);
            }
            Node::Owned(value) => {
                writer.push(value);
            }
            Node::Document(fields) => {
                writer.push_document();
                fields.write(writer);
                writer.end();
            }
            Node::Array(elements) => {
                writer.push_array();
                write_elements(elements, writer);
                writer.end();
            }
        }
    }
}

impl Node<'_> {
    /// Opens a container value, so that it can be changed inside.
    pub(super) fn open(&mut self) {
        let opened = match self {
            Node::Borrowed(ValueRef::Document(doc)) => Node::Document(Fields::open(*doc)),
            Node::Borrowed(ValueRef::Array(array)) => {
                Node::Array(array.iter().map(Node::Borrowed).collect())
            }
            Node::Owned(Value::Document(doc)) => Node::Document(Fields::open_owned(doc.as_doc())),
            Node::Owned(Value::Array(array)) => {
                Node::Array(array.iter().map(|v| Node::Owned(v.to_owned())).collect())
            }
            Node::Borrowed(_) | Node::Owned(_) | Node::Document(_) | Node::Array(_) => return,
        };
        *self = opened;
    }

    /// The value as it stands now, changes inside included.
    pub(super) fn value(&self) -> Cow<'_, Value> {
        match self {
            Node::Borrowed(value) => Cow::Owned(value.to_owned()),
            Node::Owned(value) => Cow::Borrowed(value),
            Node::Document(fields) => Cow::Owned(Value::Document(fields.to_document())),
            Node::Array(elements) => {
                let mut writer = ArrayWriter::new();
                for element in elements {
                    writer.push(element.value().as_ref().as_ref());
                }
                Cow::Owned(Value::Array(writer.finish()))
            }
        }
    }
}
