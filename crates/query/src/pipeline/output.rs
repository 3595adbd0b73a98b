//! `$out` and `$merge`: where a pipeline's documents go. Writing them is the
//! business of whoever runs the pipeline.

use super::parse::Place;
use super::parse::{Scope, missing_field, parse, unknown_field, wrong_type};
use crate::context::QueryContext;
use crate::expression::{Expression, FieldPath, check_user_variable};
use model::bson::{ArrayBuf, Doc, DocBuf, DocWriter, Value, ValueRef};
use model::{Code, Error, Namespace};

/// The collection that is replaced.
#[derive(Clone, Debug)]
pub struct Out {
    pub target: Namespace,
}

impl Out {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let (database, collection) = match spec {
            ValueRef::String(name) => (scope.database, name),
            ValueRef::Document(doc) => {
                let (Some(database), Some(collection), 2) =
                    (doc.get("db"), doc.get("coll"), doc.iter().count())
                else {
                    return Err(Error::location(
                        16994,
                        "If an object is passed to $out it must have exactly 2 fields: 'db' and \
                         'coll'",
                    ));
                };
                (string("db", database)?, string("coll", collection)?)
            }
            other => {
                return Err(Error::location(
                    16990,
                    format!(
                        "$out only supports a string or object argument, but found {}",
                        other.kind().name()
                    ),
                ));
            }
        };
        if collection.starts_with("system.") {
            return Err(Error::location(
                17385,
                format!("Can't $out to special collection: {collection}"),
            ));
        }
        if is_internal(database) {
            return Err(Error::location(
                31321,
                format!("Can't $out to internal database: {database}"),
            ));
        }
        let target = Namespace::new(database, collection).map_err(|_| {
            Error::new(
                Code::INVALID_NAMESPACE,
                format!("Invalid $out target namespace, {database}.{collection}"),
            )
        })?;
        Ok(Self { target })
    }
}

fn string<'a>(name: &str, value: ValueRef<'a>) -> Result<&'a str, Error> {
    match value {
        ValueRef::String(text) => Ok(text),
        other => Err(Error::location(
            13111,
            format!(
                "wrong type for field ({name}) {} != string",
                other.kind().name()
            ),
        )),
    }
}

fn is_internal(database: &str) -> bool {
    matches!(database, "admin" | "local" | "config")
}

/// How documents are joined with those of a collection.
#[derive(Clone, Debug)]
pub struct Merge {
    pub target: Namespace,
    /// The fields that identify a document; `None` is `_id`.
    pub on: Option<Vec<String>>,
    pub when_matched: WhenMatched,
    pub when_not_matched: WhenNotMatched,
    variables: Vec<(String, Expression)>,
}

#[derive(Clone, Debug)]
pub enum WhenMatched {
    Replace,
    Merge,
    KeepExisting,
    Fail,
    /// An update's pipeline, which may refer to `$$new` and to `let`.
    Pipeline(ArrayBuf),
}

impl WhenMatched {
    fn name(&self) -> &'static str {
        match self {
            WhenMatched::Replace => "replace",
            WhenMatched::Merge => "merge",
            WhenMatched::KeepExisting => "keepExisting",
            WhenMatched::Fail => "fail",
            WhenMatched::Pipeline(_) => "pipeline",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenNotMatched {
    Insert,
    Discard,
    Fail,
}

impl WhenNotMatched {
    fn name(self) -> &'static str {
        match self {
            WhenNotMatched::Insert => "insert",
            WhenNotMatched::Discard => "discard",
            WhenNotMatched::Fail => "fail",
        }
    }
}

impl Merge {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let doc = match spec {
            ValueRef::String(name) => {
                return Ok(Self {
                    target: target(scope.database, name)?,
                    on: None,
                    when_matched: WhenMatched::Merge,
                    when_not_matched: WhenNotMatched::Insert,
                    variables: Vec::new(),
                });
            }
            ValueRef::Document(doc) => doc,
            other => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "$merge requires a string or object argument, but found {}",
                        other.kind().name()
                    ),
                ));
            }
        };
        let (mut into, mut on, mut variables) = (None, None, None);
        let mut when_matched = WhenMatched::Merge;
        let mut when_not_matched = WhenNotMatched::Insert;
        for element in doc.iter() {
            let value = element.value();
            match element.key() {
                "into" => into = Some(parse_into(value, scope)?),
                "on" => on = Some(parse_on(value)?),
                "let" => match value {
                    ValueRef::Document(defined) => variables = Some(defined),
                    ValueRef::Null | ValueRef::Undefined => {}
                    _ => return Err(wrong_type("$merge", "let", value, "object")),
                },
                "whenMatched" => when_matched = parse_when_matched(value)?,
                "whenNotMatched" => when_not_matched = parse_when_not_matched(value)?,
                "targetCollectionVersion" | "allowMergeOnNullishValues" => {}
                unknown => return Err(unknown_field("$merge", unknown)),
            }
        }
        let target = into.ok_or_else(|| missing_field("$merge", "into"))?;
        check_modes(&when_matched, when_not_matched)?;
        let variables = parse_variables(&when_matched, variables, scope)?;
        if let WhenMatched::Pipeline(stages) = &when_matched {
            check_pipeline(stages, &variables, scope)?;
        }
        Ok(Self {
            target,
            on,
            when_matched,
            when_not_matched,
            variables,
        })
    }

    /// The update that joins a document, as its command would have it: fields are paths for
    /// `$set`, and in its order. `None` where `whenMatched` is neither an operator nor a replacement.
    pub fn operators(&self, doc: Doc<'_>) -> Option<DocBuf> {
        let operator = match self.when_matched {
            WhenMatched::Merge => "$set",
            WhenMatched::KeepExisting => "$setOnInsert",
            WhenMatched::Replace => return Some(doc.to_owned()),
            WhenMatched::Fail | WhenMatched::Pipeline(_) => return None,
        };
        Some(DocWriter::new().with(operator, doc).finish())
    }

    /// The fields by which a document is found in the target. One without `_id`
    /// has been given one before.
    pub fn identity(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        let id = ["_id".to_owned()];
        let on = self.on.as_deref().unwrap_or(&id);
        let mut writer = DocWriter::new();
        for field in on {
            let path = FieldPath::parse(field)?;
            let value = super::nested_field::plain_field(doc, path.names());
            match value {
                None | Some(ValueRef::Null | ValueRef::Undefined) => {
                    return Err(Error::location(
                        51132,
                        format!(
                            "$merge write error: 'on' field '{field}' cannot be missing, null, \
                             undefined or an array"
                        ),
                    ));
                }
                Some(ValueRef::Array(_)) => {
                    return Err(Error::location(
                        51185,
                        format!("$merge write error: 'on' field '{field}' is an array"),
                    ));
                }
                Some(value) => {
                    writer.append(field, value);
                }
            }
        }
        Ok(writer.finish())
    }

    /// The context of `whenMatched` for one document: `let` and `$$new`.
    pub fn bound(&self, doc: Doc<'_>, context: &QueryContext) -> Result<QueryContext, Error> {
        let mut names = Vec::new();
        let mut values = Vec::new();
        for (name, expression) in &self.variables {
            names.push(name.clone());
            values.push(expression.evaluate(doc)?);
        }
        if !names.iter().any(|name| name == "new") {
            names.push("new".to_owned());
            values.push(Some(Value::Document(doc.to_owned())));
        }
        Ok(context.bind(&names, values))
    }
}

fn target(database: &str, collection: &str) -> Result<Namespace, Error> {
    if is_internal(database) {
        return Err(Error::location(
            31320,
            format!("Cannot $merge to internal database: {database}"),
        ));
    }
    if collection.starts_with("system.") {
        return Err(Error::location(
            31319,
            format!("Cannot $merge to special collection: {collection}"),
        ));
    }
    Namespace::new(database, collection).map_err(|_| {
        Error::new(
            Code::INVALID_NAMESPACE,
            format!("Invalid $merge target namespace: '{database}.{collection}'"),
        )
    })
}

fn parse_into(value: ValueRef<'_>, scope: &Scope<'_>) -> Result<Namespace, Error> {
    match value {
        ValueRef::String("") => Err(Error::location(
            5786800,
            "$merge 'into' field cannot be an empty string",
        )),
        ValueRef::String(name) => target(scope.database, name),
        ValueRef::Document(doc) => {
            let mut database = scope.database;
            let mut collection = "";
            for element in doc.iter() {
                match (element.key(), element.value()) {
                    ("db", ValueRef::String(name)) => database = name,
                    ("coll", ValueRef::String(name)) => collection = name,
                    ("db" | "coll", ValueRef::Null | ValueRef::Undefined) => {}
                    (name @ ("db" | "coll"), value) => {
                        return Err(wrong_type("into", name, value, "string"));
                    }
                    (unknown, _) => return Err(unknown_field("into", unknown)),
                }
            }
            if collection.is_empty() {
                return Err(Error::location(
                    5786801,
                    "$merge 'into' field must specify a 'coll' that is not empty, null or \
                     undefined",
                ));
            }
            target(database, collection)
        }
        other => Err(Error::location(
            51178,
            format!(
                "$merge 'into' field  must be either a string or an object, but found {}",
                other.kind().name()
            ),
        )),
    }
}

fn parse_on(value: ValueRef<'_>) -> Result<Vec<String>, Error> {
    let mut fields: Vec<String> = Vec::new();
    match value {
        ValueRef::String(field) => fields.push(field.to_owned()),
        ValueRef::Array(listed) => {
            if listed.is_empty() {
                return Err(Error::location(
                    51187,
                    "If explicitly specifying $merge 'on', must include at least one field",
                ));
            }
            for field in listed.iter() {
                let ValueRef::String(field) = field else {
                    return Err(Error::location(
                        51134,
                        format!(
                            "$merge 'on' array elements must be strings, but found {}",
                            field.kind().name()
                        ),
                    ));
                };
                if fields.iter().any(|known| known == field) {
                    return Err(Error::location(
                        31465,
                        format!("Found a duplicate field '{field}'"),
                    ));
                }
                fields.push(field.to_owned());
            }
        }
        other => {
            return Err(Error::location(
                51186,
                format!(
                    "$merge 'on' field  must be either a string or an array of strings, but \
                     found {}",
                    other.kind().name()
                ),
            ));
        }
    }
    for field in &fields {
        FieldPath::parse(field)?;
    }
    Ok(fields)
}

fn parse_when_matched(value: ValueRef<'_>) -> Result<WhenMatched, Error> {
    Ok(match value {
        ValueRef::String("replace") => WhenMatched::Replace,
        ValueRef::String("merge") => WhenMatched::Merge,
        ValueRef::String("keepExisting") => WhenMatched::KeepExisting,
        ValueRef::String("fail") => WhenMatched::Fail,
        ValueRef::String(other) => {
            return Err(Error::bad_value(format!(
                "Enumeration value '{other}' for field 'whenMatched' is not a valid value."
            )));
        }
        ValueRef::Array(stages) => WhenMatched::Pipeline(stages.to_owned()),
        other => {
            return Err(Error::location(
                51191,
                format!(
                    "$merge 'whenMatched' field  must be either a string or an array, but found {}",
                    other.kind().name()
                ),
            ));
        }
    })
}

fn parse_when_not_matched(value: ValueRef<'_>) -> Result<WhenNotMatched, Error> {
    Ok(match value {
        ValueRef::String("insert") => WhenNotMatched::Insert,
        ValueRef::String("discard") => WhenNotMatched::Discard,
        ValueRef::String("fail") => WhenNotMatched::Fail,
        ValueRef::String(other) => {
            return Err(Error::bad_value(format!(
                "Enumeration value '{other}' for field '$merge.whenNotMatched' is not a valid \
                 value."
            )));
        }
        other => return Err(wrong_type("$merge", "whenNotMatched", other, "string")),
    })
}

/// Combinations in which nothing would ever be written have no meaning.
fn check_modes(matched: &WhenMatched, not_matched: WhenNotMatched) -> Result<(), Error> {
    let meaningless = matches!(matched, WhenMatched::Fail | WhenMatched::KeepExisting)
        && not_matched != WhenNotMatched::Insert;
    if meaningless {
        return Err(Error::location(
            51181,
            format!(
                "Combination of $merge modes 'whenMatched: {}' and 'whenNotMatched: {}' is not \
                 supported",
                matched.name(),
                not_matched.name()
            ),
        ));
    }
    Ok(())
}

fn parse_variables(
    when_matched: &WhenMatched,
    defined: Option<Doc<'_>>,
    scope: &Scope<'_>,
) -> Result<Vec<(String, Expression)>, Error> {
    let Some(defined) = defined else {
        return Ok(Vec::new());
    };
    if !matches!(when_matched, WhenMatched::Pipeline(_)) {
        return Err(Error::location(
            51199,
            format!(
                "Cannot use 'let' variables with 'whenMatched: {}' mode",
                when_matched.name()
            ),
        ));
    }
    defined
        .iter()
        .map(|element| {
            check_user_variable(element.key())?;
            let expression = Expression::parse(element.value(), scope.context)?;
            if element.key() == "new" && !expression.is_root() {
                return Err(Error::location(
                    51273,
                    "'let' may not define a value for the reserved 'new' variable other than \
                     '$$ROOT'",
                ));
            }
            Ok((element.key().to_owned(), expression))
        })
        .collect()
}

/// Finds stages that are none; what an update does not take is found when it
/// runs, as MongoDB has it.
fn check_pipeline(
    stages: &ArrayBuf,
    variables: &[(String, Expression)],
    scope: &Scope<'_>,
) -> Result<(), Error> {
    let mut names: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
    names.push("new".to_owned());
    let context = scope.context.bind(&names, Vec::new());
    let inside = scope.inside(Place::Update, scope.collection, &context)?;
    parse(stages.as_array(), &inside).map(|_| ())
}
