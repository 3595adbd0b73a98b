//! Values as people read them in logs and test failures: close to `mongosh`.

use super::{Array, ArrayBuf, Doc, DocBuf, ObjectId, Timestamp, Value, ValueRef};
use std::fmt::{self, Debug, Formatter};

impl Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ValueRef::Double(v) => write!(f, "{v:?}"),
            ValueRef::String(v) => write!(f, "{v:?}"),
            ValueRef::Document(v) => v.fmt(f),
            ValueRef::Array(v) => v.fmt(f),
            ValueRef::Binary { subtype, bytes } => write!(f, "BinData({subtype}, {bytes:02x?})"),
            ValueRef::Undefined => write!(f, "undefined"),
            ValueRef::ObjectId(v) => v.fmt(f),
            ValueRef::Boolean(v) => write!(f, "{v}"),
            ValueRef::DateTime(v) => write!(f, "Date({v})"),
            ValueRef::Null => write!(f, "null"),
            ValueRef::Regex { pattern, options } => write!(f, "/{pattern}/{options}"),
            ValueRef::DbPointer { namespace, id } => write!(f, "DBPointer({namespace:?}, {id:?})"),
            ValueRef::JavaScript(v) => write!(f, "Code({v:?})"),
            ValueRef::Symbol(v) => write!(f, "Symbol({v:?})"),
            ValueRef::JavaScriptWithScope { code, scope } => write!(f, "Code({code:?}, {scope:?})"),
            ValueRef::Int32(v) => write!(f, "{v}"),
            ValueRef::Timestamp(v) => v.fmt(f),
            ValueRef::Int64(v) => write!(f, "Long({v})"),
            ValueRef::Decimal128(v) => v.fmt(f),
            ValueRef::MinKey => write!(f, "MinKey"),
            ValueRef::MaxKey => write!(f, "MaxKey"),
        }
    }
}

impl Debug for Doc<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for element in self.iter() {
            map.entry(&format_args!("{}", element.key()), &element.value());
        }
        map.finish()
    }
}

impl Debug for Array<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Debug for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl Debug for DocBuf {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.as_doc().fmt(f)
    }
}

impl Debug for ArrayBuf {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.as_array().fmt(f)
    }
}

impl Debug for ObjectId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId(\"{self}\")")
    }
}

impl Debug for Timestamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({}, {})", self.seconds, self.increment)
    }
}
