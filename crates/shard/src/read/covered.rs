//! Documents put together from index keys, for queries that need no others.
//!
//! A missing field comes out as null, as MongoDB has it: the key does not tell.

use model::bson::{Doc, DocBuf, DocWriter, Value};
use model::key::{TypeBits, decode};
use model::{Code, Error};
use query::index::IndexDefinition;
use storage::IndexEntry;

/// `{a: .., b: {c: ..}}` from the key of an index over `a` and `b.c`.
pub(super) fn document(definition: &IndexDefinition, entry: &IndexEntry) -> Result<DocBuf, Error> {
    let values = key_values(definition, entry.fields(), entry.type_bits())?;
    let fields: Vec<(Vec<&str>, Value)> = definition
        .fields
        .iter()
        .zip(values)
        .map(|(field, value)| {
            let names = field.path.components().iter().map(|part| part.name());
            (names.collect(), value)
        })
        .collect();
    let mut out = DocWriter::new();
    let all: Vec<usize> = (0..fields.len()).collect();
    write_level(&mut out, &fields, &all, 0);
    Ok(out.finish())
}

/// The values of a key, as `returnKey` shows them.
pub(super) fn key_values(
    definition: &IndexDefinition,
    fields: &[u8],
    type_bits: &[u8],
) -> Result<Vec<Value>, Error> {
    decode(
        fields,
        &TypeBits::from_bytes(type_bits),
        &definition.directions(),
    )
    .map_err(|error| {
        Error::new(
            Code::INTERNAL_ERROR,
            format!("an entry of index {} is damaged: {error}", definition.name),
        )
    })
}

/// `{a: .., "b.c": ..}`.
pub(super) fn flat_document(definition: &IndexDefinition, values: &[Value]) -> DocBuf {
    let mut out = DocWriter::new();
    for (field, value) in definition.fields.iter().zip(values) {
        out.append(field.path.as_str(), value);
    }
    out.finish()
}

/// Writes the fields at one depth, those with the same name as one document.
fn write_level(
    out: &mut DocWriter,
    fields: &[(Vec<&str>, Value)],
    members: &[usize],
    depth: usize,
) {
    let mut done: Vec<&str> = Vec::new();
    for &at in members {
        let name = fields[at].0[depth];
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        if fields[at].0.len() == depth + 1 {
            out.append(name, &fields[at].1);
            continue;
        }
        let below: Vec<usize> = members
            .iter()
            .copied()
            .filter(|&other| fields[other].0.get(depth) == Some(&name))
            .filter(|&other| fields[other].0.len() > depth + 1)
            .collect();
        out.begin_document(name);
        write_level(out, fields, &below, depth + 1);
        out.end();
    }
}

/// The `_id` of a stored document, which every one has.
pub(super) fn id_of(document: Doc<'_>) -> Option<model::bson::ValueRef<'_>> {
    document.get("_id")
}
