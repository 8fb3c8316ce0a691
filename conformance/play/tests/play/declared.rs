//! The declarations of the driver protocol's messages, as tables.

use std::fmt::Write as _;
use std::path::Path;

use efa_play::operation::{ATOMIC_OPS, COMPARE_OPS, DATATYPES, RegionAccess};
use efa_play::scenario::Capability;
use quote::ToTokens;
use syn::{Attribute, Field, Fields, Item, ItemEnum, ItemStruct};

/// The files that declare the contents of lines.
const SOURCES: [&str; 7] = [
    "src/drive/contract.rs",
    "src/operation/atomic.rs",
    "src/operation/memory.rs",
    "src/operation/mod.rs",
    "src/operation/pattern.rs",
    "src/application/mod.rs",
    "src/scenario/endpoint.rs",
];

/// The items of the files.
pub(crate) struct Declarations(Vec<Item>);

/// A message or an operation.
pub(crate) struct Variant {
    /// Its name in a line.
    pub(crate) name: String,
    /// Its meaning.
    pub(crate) meaning: String,
    /// The table of its keys; empty if there are none.
    pub(crate) keys: String,
}

impl Declarations {
    pub(crate) fn read() -> Self {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let parse = |name| {
            let text = std::fs::read_to_string(package.join(name)).unwrap();
            syn::parse_file(&text).unwrap().items
        };
        Declarations(SOURCES.into_iter().flat_map(parse).collect())
    }

    fn structure(&self, name: &str) -> Option<&ItemStruct> {
        self.0.iter().find_map(|item| match item {
            Item::Struct(found) if found.ident == name => Some(found),
            _ => None,
        })
    }

    fn enumeration(&self, name: &str) -> Option<&ItemEnum> {
        self.0.iter().find_map(|item| match item {
            Item::Enum(found) if found.ident == name => Some(found),
            _ => None,
        })
    }

    /// The variants of an enumeration.
    pub(crate) fn variants(&self, name: &str) -> Vec<Variant> {
        let variants = &self.enumeration(name).unwrap().variants;
        let variants = variants.iter().map(|variant| Variant {
            name: kebab(&variant.ident.to_string()),
            meaning: meaning(&variant.attrs),
            keys: self.keys(&variant.fields),
        });
        variants.collect()
    }

    /// A paragraph about a structure, or an enumeration of values.
    pub(crate) fn value(&self, name: &str) -> String {
        let mut text = format!("\n### {}\n", words(name));
        if let Some(structure) = self.structure(name) {
            return text + "\n" + &meaning(&structure.attrs) + "\n" + &self.keys(&structure.fields);
        }
        text += "\n| value | meaning |\n|---|---|\n";
        for variant in &self.enumeration(name).unwrap().variants {
            let name = kebab(&variant.ident.to_string());
            let _ = write!(text, "| `{}` | ", value_of(&name, &variant.fields));
            let keys = variant.fields.iter().filter(|field| field.ident.is_some());
            let _ = write!(text, "{}", meaning(&variant.attrs));
            for field in keys {
                let Key { name, meaning, .. } = self.key(field);
                let _ = write!(text, " `{name}`: {meaning}");
            }
            if attributes(&variant.fields).contains("op") {
                let _ = write!(text, " The function is {}.", kind_of_op(&variant.fields));
            }
            text += " |\n";
        }
        text
    }

    /// The table of the keys; a single value without a name has its own table.
    fn keys(&self, fields: &Fields) -> String {
        if let Fields::Unnamed(single) = fields {
            let name = last_word(&single.unnamed[0]);
            return self.keys(&self.structure(&name).unwrap().fields);
        }
        if fields.is_empty() {
            return String::new();
        }
        let mut text = "\n| key | | value | meaning |\n|---|---|---|---|\n".to_owned();
        for field in fields {
            let Key {
                name,
                presence,
                kind,
                meaning,
            } = self.key(field);
            let _ = writeln!(text, "| `{name}` | {presence} | {kind} | {meaning} |");
        }
        text
    }

    fn key(&self, field: &Field) -> Key {
        let attributes = serde_of(&field.attrs);
        let field_name = field.ident.as_ref().unwrap().to_string();
        let renamed = attributes.split_once("rename = \"");
        let renamed = renamed.and_then(|(_, rest)| rest.split_once('"'));
        let is_optional = option(field) || attributes.contains("default");
        Key {
            name: renamed.map_or(field_name.replace('_', "-"), |(name, _)| name.to_owned()),
            presence: if is_optional { "optional" } else { "" },
            kind: self.kind(field),
            meaning: meaning(&field.attrs),
        }
    }

    fn kind(&self, field: &Field) -> String {
        let name = last_word(field);
        let list = |names: &[String]| format!("a list of {}", names.join(", "));
        match name.as_str() {
            "u8" => "a number below 256".into(),
            "u32" => "a number below 2^32".into(),
            "i32" => "a number below 2^31".into(),
            "u64" | "usize" | "Token" | "EndpointIndex" => "a number".into(),
            "bool" => "`true` or `false`".into(),
            "String" => "text".into(),
            "Bytes" => "bytes, two hexadecimal digits each".into(),
            "Version" => "text, major.minor".into(),
            "Capability" => list(&quoted(Capability::NAMES)),
            "RegionAccess" => list(&quoted(RegionAccess::NAMES)),
            "AtomicDatatype" => quoted(DATATYPES).join(", "),
            "AtomicOp" => quoted(COMPARE_OPS).join(", "),
            "OperationRequest" => "an [operation](#operations)".into(),
            // A peer's memory, which scenarios name differently.
            "M" => "[Remote](#remote)".into(),
            name => {
                let known = self.structure(name).is_some() || self.enumeration(name).is_some();
                assert!(known, "{name}");
                let words = words(name);
                format!("[{words}](#{})", words.to_lowercase().replace(' ', "-"))
            }
        }
    }
}

struct Key {
    name: String,
    presence: &'static str,
    kind: String,
    meaning: String,
}

/// The form of a variant in a line.
fn value_of(name: &str, fields: &Fields) -> String {
    match fields {
        Fields::Unit => format!("\"{name}\""),
        Fields::Unnamed(_) => format!("{{\"{name}\":\"FUNCTION\"}}"),
        Fields::Named(_) => format!("{{\"{name}\":{{...}}}}"),
    }
}

fn attributes(fields: &Fields) -> String {
    fields.iter().map(|field| serde_of(&field.attrs)).collect()
}

fn kind_of_op(fields: &Fields) -> String {
    let attributes = attributes(fields);
    let names = match () {
        () if attributes.contains("compared_op") => quoted(COMPARE_OPS),
        () if attributes.contains("updated_op") => {
            let all = quoted(ATOMIC_OPS).into_iter();
            all.filter(|name| name != "`read`").collect()
        }
        () => quoted(ATOMIC_OPS),
    };
    names.join(", ")
}

fn quoted<T>(names: impl IntoIterator<Item = (&'static str, T)>) -> Vec<String> {
    let names = names.into_iter();
    names.map(|(name, _)| format!("`{name}`")).collect()
}

/// `TwoWords` as `two-words`.
fn kebab(name: &str) -> String {
    words(name).to_lowercase().replace(' ', "-")
}

/// `TwoWords` as `Two words`.
fn words(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push(' ');
            text.extend(character.to_lowercase());
        } else {
            text.push(character);
        }
    }
    text
}

fn type_of(field: &Field) -> String {
    field.ty.to_token_stream().to_string()
}

fn option(field: &Field) -> bool {
    type_of(field).starts_with("Option")
}

/// The type's name, or the name of its contents.
fn last_word(field: &Field) -> String {
    let text = type_of(field);
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    words.rfind(|word| !word.is_empty()).unwrap().into()
}

/// The text of serde's attributes.
fn serde_of(attributes: &[Attribute]) -> String {
    let serde = attributes.iter().filter(|it| it.path().is_ident("serde"));
    serde
        .map(|it| it.meta.to_token_stream().to_string())
        .collect()
}

/// The documentation in one line.
fn meaning(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let syn::Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(line) = &literal.lit
        {
            text += &line.value();
        }
    }
    text.trim().to_owned()
}
