//! A difference as change events tell it: paths instead of nesting.

use model::bson::{Doc, DocBuf, DocWriter, Element, Kind, ValueRef};

/// One step of a path.
#[derive(Clone)]
enum Component<'a> {
    Field(&'a str),
    Index(i32),
}

#[derive(Default)]
struct Description<'a> {
    updated: Vec<(String, Element<'a>)>,
    removed: Vec<String>,
    truncated: Vec<(String, i32)>,
}

/// The `updateDescription` of a difference: `updatedFields`, `removedFields` and
/// `truncatedArrays`. Later versions of MongoDB also tell paths apart that read the
/// same; 6.0 does not.
pub fn describe(difference: Doc<'_>) -> DocBuf {
    let mut description = Description::default();
    description.document(difference, &mut Vec::new());
    let mut out = DocWriter::new();
    out.begin_document("updatedFields");
    for (path, element) in &description.updated {
        out.append_renamed(path, element);
    }
    out.end();
    out.begin_array("removedFields");
    for path in &description.removed {
        out.push(path.as_str());
    }
    out.end();
    out.begin_array("truncatedArrays");
    for (path, length) in &description.truncated {
        out.push_document()
            .append("field", path.as_str())
            .append("newSize", *length)
            .end();
    }
    out.end();
    out.finish()
}

impl<'a> Description<'a> {
    fn document(&mut self, difference: Doc<'a>, at: &mut Vec<Component<'a>>) {
        for section in difference.iter() {
            let ValueRef::Document(content) = section.value() else {
                continue;
            };
            match section.key() {
                "d" => {
                    for field in content.iter() {
                        let path = path(at, Component::Field(field.key()));
                        self.removed.push(path);
                    }
                }
                "u" | "i" => {
                    for field in content.iter() {
                        let path = path(at, Component::Field(field.key()));
                        self.updated.push((path, field));
                    }
                }
                name => {
                    if let Some(field) = name.strip_prefix('s') {
                        self.nested(Component::Field(field), content, at);
                    }
                }
            }
        }
    }

    fn nested(&mut self, step: Component<'a>, content: Doc<'a>, at: &mut Vec<Component<'a>>) {
        at.push(step);
        let is_array = content
            .first()
            .is_some_and(|first| first.key_bytes() == b"a" && first.kind() == Kind::Boolean);
        if is_array {
            self.array(content, at);
        } else {
            self.document(content, at);
        }
        at.pop();
    }

    fn array(&mut self, difference: Doc<'a>, at: &mut Vec<Component<'a>>) {
        for change in difference.iter() {
            let key = change.key();
            if let ("l", ValueRef::Int32(length)) = (key, change.value()) {
                self.truncated.push((joined(at), length));
                continue;
            }
            let index = |prefix| key.strip_prefix(prefix)?.parse::<i32>().ok();
            if let Some(index) = index('u') {
                let path = path(at, Component::Index(index));
                self.updated.push((path, change));
            } else if let (Some(index), ValueRef::Document(content)) = (index('s'), change.value())
            {
                self.nested(Component::Index(index), content, at);
            }
        }
    }
}

/// The path of a step below `at`.
fn path(at: &[Component<'_>], step: Component<'_>) -> String {
    let mut path = joined(at);
    push(&mut path, &step);
    path
}

fn joined(components: &[Component<'_>]) -> String {
    let mut path = String::new();
    for component in components {
        push(&mut path, component);
    }
    path
}

fn push(path: &mut String, component: &Component<'_>) {
    if !path.is_empty() {
        path.push('.');
    }
    match component {
        Component::Field(name) => path.push_str(name),
        Component::Index(index) => path.push_str(&index.to_string()),
    }
}
