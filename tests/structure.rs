//! The borders between rooms, read from the sources. `docs/ARCHITECTURE.md` says why each is there.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::Pat;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// Rooms and what they may import; `error`, `dtype`, `lock`, `panics` and `target` are everybody's.
const ROOMS: &[(&str, &[&str])] = &[
    ("descriptor", &["kernel_ir"]),
    ("kernel_ir", &[]),
    ("passes", &["kernel_ir"]),
    ("layout", &["kernel_ir"]),
    ("plan", &["kernel_ir", "layout"]),
    ("inline", &["kernel_ir", "ptx"]),
    ("lower", &["inline", "kernel_ir", "layout", "plan", "ptx"]),
    ("ptx", &[]),
    ("assemble", &["ptx"]),
    ("emulate", &["ptx"]),
    ("cuda", &[]),
    ("target", &[]),
    (
        "runtime",
        &[
            "descriptor",
            "inline",
            "kernel_ir",
            "passes",
            "layout",
            "plan",
            "lower",
            "ptx",
            "assemble",
            "emulate",
            "cuda",
        ],
    ),
    ("capi", &["runtime"]),
    ("ffi", &["runtime"]),
];
const SHARED: &[&str] = &["error", "dtype", "lock", "panics", "target"];

/// Crates that only one room knows.
const PRIVATE: &[(&str, &str)] = &[("cxx::", "ffi"), ("cudarc::", "cuda"), ("prost::", "descriptor")];

/// Where `unsafe` may stand: foreign functions, and memory that belongs to the host program.
const UNSAFE: &[&str] = &[
    "cuda/",
    "ffi/",
    "capi/",
    // A foreign library.
    "assemble/nvjitlink.rs",
    // Buffers of the host program.
    "runtime/fictitious.rs",
    "runtime/host.rs",
    "runtime/call_site.rs",
    "runtime/artifact.rs",
    // A signal handler.
    "runtime/interrupt.rs",
    // Global memory is the host's; SIMD.
    "emulate/",
];

struct Source {
    /// Relative to `src`.
    path: String,
    /// Without comments.
    code: String,
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
        Source {
            path: path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
            code: text.lines().map(line).collect(),
        }
    };
    sources(&root).into_iter().map(read).collect()
}

/// The identifiers that follow `prefix` in `code`; `prefix{a::x, b::y}` gives both.
fn after<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let identifier = |text: &'a str| {
        let end = text
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        &text[..end]
    };
    code.match_indices(prefix).flat_map(move |(at, _)| {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => vec![identifier(rest)],
            Some(list) => {
                let mut depth = 0;
                let ends = |c: char| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    depth < 0
                };
                let list = &list[..list.find(ends).unwrap_or(list.len())];
                list.split(',')
                    .map(|item| identifier(item.trim()))
                    .filter(|name| !name.is_empty())
                    .collect()
            }
        }
    })
}

#[test]
fn rooms_import_only_what_they_may() {
    let rooms = ROOMS.iter().map(|(room, _)| *room).collect::<BTreeSet<_>>();
    let mut wrong = Vec::new();
    for source in all() {
        let Some((room, allowed)) = ROOMS
            .iter()
            .find(|(room, _)| source.path.starts_with(&format!("{room}/")))
        else {
            assert!(!source.path.contains('/'), "a room without rules: {}", source.path);
            continue;
        };
        for name in after(&source.code, "crate::") {
            let known = rooms.contains(name) || SHARED.contains(&name);
            if known && name != *room && !SHARED.contains(&name) && !allowed.contains(&name) {
                wrong.push(format!("{}: {room} may not import {name}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn some_crates_are_known_to_one_room_only() {
    for source in all() {
        for (name, room) in PRIVATE {
            let used = source.code.contains(name);
            assert!(
                !used || source.path.starts_with(&format!("{room}/")),
                "{} uses {name}",
                source.path
            );
        }
    }
}

#[test]
fn unsafe_stands_where_it_may() {
    let is_unsafe = |code: &str| {
        let words = code.match_indices("unsafe");
        words.into_iter().any(|(at, word)| {
            let before = code[..at].chars().next_back();
            let next = code[at + word.len()..].trim_start();
            let starts = ["{", "fn ", "impl", "extern", "("]
                .iter()
                .any(|start| next.starts_with(start));
            starts && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    };
    for source in all() {
        let may = UNSAFE.iter().any(|place| source.path.starts_with(place));
        assert!(may || !is_unsafe(&source.code), "unsafe in src/{}", source.path);
    }
}

/// What cannot be compiled is refused before lowering: an error there is a defect of the compiler.
#[test]
fn lowering_refuses_nothing() {
    const USERS: [&str; 4] = ["Error::invalid", "Error::unsupported", ".unsupported(", "Error::new("];
    for source in all().iter().filter(|source| source.path.starts_with("lower/")) {
        for name in USERS {
            assert!(!source.code.contains(name), "{name} in src/{}", source.path);
        }
    }
}

#[test]
fn the_reader_of_imports_reads() {
    let names = |code| after(code, "crate::").collect::<Vec<_>>();
    assert_eq!(
        names("use crate::error::{Error, Loc}; crate::ptx::Flat"),
        ["error", "ptx"]
    );
    assert_eq!(
        names("use crate::{cuda::Plan, error::{A, B}, ptx};"),
        ["cuda", "error", "B", "ptx"]
    );
}

#[test]
fn every_file_is_reached_by_a_mod() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut reached = BTreeSet::from([root.join("lib.rs")]);
    let mut work = vec![root.join("lib.rs")];
    while let Some(file) = work.pop() {
        let text = std::fs::read_to_string(&file).unwrap();
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "mod.rs") => file.parent().unwrap().to_owned(),
            _ => file.with_extension(""),
        };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [.., "mod", name] = words[..] else {
                continue;
            };
            let Some(name) = name.strip_suffix(';') else { continue };
            for path in [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")] {
                if path.exists() && reached.insert(path.clone()) {
                    work.push(path);
                }
            }
        }
    }
    let orphans: Vec<PathBuf> = sources(&root)
        .into_iter()
        .filter(|file| !reached.contains(file))
        .collect();
    assert!(orphans.is_empty(), "no `mod` names {orphans:?}");
}

/// Enums and their variants.
type Enums = BTreeMap<String, BTreeSet<String>>;

/// The `match`es on an op's kind or class, or on something that holds one, with an arm for whatever kind: a new op would take it
/// unseen. What is read of macros is arguments that are expressions.
struct KindMatches<'a> {
    enums: &'a Enums,
    /// The names by which this file knows the enums, and the variants that it knows by their own name.
    aliases: BTreeMap<String, String>,
    imported: BTreeSet<String>,
    /// The enum within whose `impl` this is.
    of_impl: Option<String>,
    /// Where one has a catch-all arm.
    lines: Vec<usize>,
}

impl KindMatches<'_> {
    /// The lines of `match`es with an arm for any kind.
    fn lines(text: &str, enums: &Enums) -> Vec<usize> {
        // Whatever its variants are called by, the enum is named. Most files need not be parsed.
        if !enums.keys().any(|name| text.contains(name)) {
            return vec![];
        }
        let file = syn::parse_file(text).unwrap();
        let mut finder = KindMatches {
            enums,
            aliases: enums.keys().map(|name| (name.clone(), name.clone())).collect(),
            imported: BTreeSet::new(),
            of_impl: None,
            lines: vec![],
        };
        finder.visit_file(&file);
        finder.lines
    }

    fn is_variant(&self, path: &syn::Path) -> bool {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match &names[..] {
            [.., of, name] => {
                let alias = self.aliases.get(of);
                let of = if of == "Self" { self.of_impl.as_ref() } else { alias };
                of.is_some_and(|of| self.enums[of].contains(name))
            }
            [name] => self.imported.contains(name),
            [] => false,
        }
    }

    /// Whether among patterns for one thing, or for one part of it, some name a kind and others take any.
    fn takes_any(&self, column: &[&Pat]) -> bool {
        let cases: Vec<&Pat> = column.iter().flat_map(|pattern| cases(pattern)).collect();
        let is_wild = |pattern: &&Pat| match pattern {
            Pat::Wild(_) | Pat::Rest(_) => true,
            // A name, unless it is one of a variant or a constant.
            Pat::Ident(name) => !name.ident.to_string().starts_with(char::is_uppercase),
            _ => false,
        };
        let names_kind = |pattern: &&Pat| match pattern {
            Pat::Ident(name) => self.imported.contains(&name.ident.to_string()),
            Pat::Path(pattern) => self.is_variant(&pattern.path),
            Pat::TupleStruct(pattern) => self.is_variant(&pattern.path),
            Pat::Struct(pattern) => self.is_variant(&pattern.path),
            _ => false,
        };
        let wild = cases.iter().copied().find(|pattern| is_wild(pattern));
        if wild.is_some() && cases.iter().any(names_kind) {
            return true;
        }
        // What stands within, place by place; a pattern for any of the whole is one for any part.
        let mut columns = BTreeMap::<String, Vec<&Pat>>::new();
        for case in &cases {
            let of = |path: &syn::Path| path.segments.last().unwrap().ident.to_string();
            let mut add = |place: String, part| columns.entry(place).or_default().push(part);
            match case {
                Pat::Tuple(tuple) => (tuple.elems.iter().enumerate()).for_each(|(i, part)| add(i.to_string(), part)),
                Pat::TupleStruct(tuple) => {
                    (tuple.elems.iter().enumerate()).for_each(|(i, part)| add(format!("{}.{i}", of(&tuple.path)), part))
                }
                Pat::Slice(slice) => slice.elems.iter().for_each(|part| add("[]".to_owned(), part)),
                Pat::Struct(structure) => structure.fields.iter().for_each(|field| {
                    let name = match &field.member {
                        syn::Member::Named(name) => name.to_string(),
                        syn::Member::Unnamed(index) => index.index.to_string(),
                    };
                    add(format!("{}.{name}", of(&structure.path)), &field.pat)
                }),
                _ => {}
            }
        }
        columns.into_values().any(|mut column| {
            column.extend(wild);
            self.takes_any(&column)
        })
    }

    /// `of`: the enum whose variants are imported.
    fn read_use(&mut self, of: Option<&String>, tree: &syn::UseTree) {
        match (tree, of) {
            (syn::UseTree::Path(path), _) => {
                let of = self.aliases.get(&path.ident.to_string()).cloned();
                self.read_use(of.as_ref(), &path.tree);
            }
            (syn::UseTree::Group(group), _) => group.items.iter().for_each(|tree| self.read_use(of, tree)),
            (syn::UseTree::Glob(_), Some(of)) => self.imported.extend(self.enums[of].iter().cloned()),
            (syn::UseTree::Name(name), Some(_)) => drop(self.imported.insert(name.ident.to_string())),
            (syn::UseTree::Rename(name), Some(_)) => drop(self.imported.insert(name.rename.to_string())),
            (syn::UseTree::Rename(name), None) => {
                if let Some(of) = self.aliases.get(&name.ident.to_string()).cloned() {
                    self.aliases.insert(name.rename.to_string(), of);
                }
            }
            (syn::UseTree::Glob(_) | syn::UseTree::Name(_), None) => {}
        }
    }
}

/// The alternatives of a pattern, without what does not narrow it.
fn cases(pattern: &Pat) -> Vec<&Pat> {
    match pattern {
        Pat::Or(or) => or.cases.iter().flat_map(cases).collect(),
        Pat::Reference(reference) => cases(&reference.pat),
        Pat::Paren(paren) => cases(&paren.pat),
        Pat::Ident(syn::PatIdent {
            subpat: Some((_, pattern)),
            ..
        }) => cases(pattern),
        pattern => vec![pattern],
    }
}

impl Visit<'_> for KindMatches<'_> {
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.read_use(None, &item.tree);
    }
    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        let of = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|name| name.ident.to_string()),
            _ => None,
        };
        let inner = of.and_then(|name| self.aliases.get(&name).cloned());
        let outer = std::mem::replace(&mut self.of_impl, inner);
        visit::visit_item_impl(self, item);
        self.of_impl = outer;
    }
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        let is_test = |attribute: &syn::Attribute| match &attribute.meta {
            syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
            syn::Meta::Path(_) | syn::Meta::NameValue(_) => false,
        };
        if !item.attrs.iter().any(is_test) {
            visit::visit_item_mod(self, item);
        }
    }
    fn visit_macro(&mut self, item: &syn::Macro) {
        let arguments = item.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated);
        for argument in arguments.iter().flatten() {
            self.visit_expr(argument);
        }
    }
    fn visit_expr_match(&mut self, item: &syn::ExprMatch) {
        let column: Vec<&Pat> = item.arms.iter().map(|arm| &arm.pat).collect();
        if self.takes_any(&column) {
            self.lines.push(item.match_token.span.start().line);
        }
        visit::visit_expr_match(self, item);
    }
}

/// `OpKind`, and what its classes are made of.
fn kinds() -> Enums {
    let rows = smalt::kernel_ir::ROWS.iter();
    let mut kinds = Enums::from([("OpKind".to_string(), rows.map(|row| row.variant.to_string()).collect())]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernel_ir/class.rs");
    for item in syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap().items {
        if let syn::Item::Enum(item) = item {
            let variants = item.variants.iter().map(|variant| variant.ident.to_string());
            kinds.insert(item.ident.to_string(), variants.collect());
        }
    }
    kinds
}

#[test]
fn no_match_on_an_op_has_an_arm_for_whatever_op() {
    let kinds = kinds();
    assert!(
        kinds["OpKind"].len() > 60 && kinds.contains_key("Class") && kinds.contains_key("Control"),
        "{kinds:?}"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for path in sources(&root) {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().display();
        wrong.extend(
            KindMatches::lines(&text, &kinds)
                .iter()
                .map(|line| format!("{name}:{line}")),
        );
    }
    assert!(
        wrong.is_empty(),
        "{} `match`es on an op's kind with an arm for whatever kind (src/kernel_ir/class.rs says what to match on instead):\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_finder_of_arms_for_whatever_op_finds() {
    let kinds = kinds();
    let found = |body: &str| {
        let text = format!("fn f() {{\n{body}\n}}");
        !KindMatches::lines(&text, &kinds).is_empty()
    };
    for catch_all in [
        "_",
        "kind",
        "_ if ready",
        "ref kind",
        "OpKind::Store { .. } | _",
        "kind @ _",
        "&_",
    ] {
        let text = format!("match kind {{ OpKind::Load {{ .. }} => 1, {catch_all} => 2 }}");
        assert!(found(&text), "{catch_all}");
    }
    for with_catch_all in [
        "match (kind, n) { (OpKind::CommitGroup, 1) => 1, (_, n) => n }",
        "match (kind, n) { (OpKind::CommitGroup, 1) => 1, _ => 2 }",
        "match def { Some(OpKind::Constant(c)) => c, Some(_) | None => 2 }",
        "match &ops[op] { OpData { kind: OpKind::CommitGroup, .. } => 1, _ => 2 }",
        "emit(vec![1, match kind { op::OpKind::CommitSmem => 1, _ => 2 }])",
        "use crate::kernel_ir::OpKind::*; match kind { CommitSmem => 1, _ => 2 }",
        "use crate::kernel_ir::{OpKind as K, Op}; match kind { K::CommitSmem => 1, _ => 2 }",
        "impl OpKind { fn f(&self) { match self { Self::CommitSmem => 1, _ => 2 } } }",
        "match kind.control() { Some(Control::For { .. }) => 1, _ => 2 }",
        "match kind.class() { Class::Pure(Pure::Iota) => 1, Class::Pure(_) | Class::Memory => 2 }",
    ] {
        assert!(found(with_catch_all), "{with_catch_all}");
    }
    for without in [
        "match kind { OpKind::Load { .. } => 1, OpKind::Binary { op: _, a, b } => 2 }",
        "match (kind, n) { (OpKind::Load { .. }, 1) => 1, (OpKind::Load { .. }, _) => 2 }",
        "match op { BinaryOp::Add => 1, _ => 2 }",
        "match kind.class() { Class::Pure(_) => 1, Class::Memory => 2 }",
        "match kind.control() { Some(Control::For { .. }) => 1, None => 2 }",
        "impl Cx { fn f(&self) { match self { Self::CommitSmem => 1, _ => 2 } } }",
        "if let OpKind::Load { src } = kind { f(src) } else { g() }",
        "#[cfg(test)] mod tests { fn f() { match kind { OpKind::CommitSmem => 1, _ => 2 } } }",
    ] {
        assert!(!found(without), "{without}");
    }
    let text = "fn f() {\n\n    match k {\n        OpKind::CommitSmem => 1,\n        _ => 2,\n    }\n}";
    assert_eq!(KindMatches::lines(text, &kinds), [3]);
}

/// Refusals: what is built from `Error::unsupported` or `Error::invalid`, and whether a remedy goes with it.
#[derive(Default)]
struct Refusals {
    /// Lines whose error is given on as it is.
    bare: Vec<usize>,
    found: usize,
    /// Behind `let wrong = || …` the remedy comes where it is used.
    in_let: bool,
}

impl Refusals {
    /// The line of a call that makes an error.
    fn line(call: &syn::ExprCall) -> Option<usize> {
        let syn::Expr::Path(path) = &*call.func else {
            return None;
        };
        let names: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
        let is_error = matches!(names.as_slice(), [error, kind] if error == "Error" && (kind == "unsupported" || kind == "invalid"));
        is_error.then(|| path.path.segments[0].ident.span().start().line)
    }

    fn tell(&mut self, line: usize, has_remedy: bool) {
        self.found += 1;
        if !has_remedy && !self.in_let {
            self.bare.push(line);
        }
    }
}

impl<'a> Visit<'a> for Refusals {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        let is_closure = local
            .init
            .as_ref()
            .is_some_and(|init| matches!(&*init.expr, syn::Expr::Closure(_)));
        let outer = self.in_let;
        self.in_let |= is_closure;
        visit::visit_local(self, local);
        self.in_let = outer;
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let (mut has_remedy, mut at) = (call.method == "remedy", &*call.receiver);
        let mut chain = vec![call];
        while let syn::Expr::MethodCall(inner) = at {
            has_remedy |= inner.method == "remedy";
            chain.push(inner);
            at = &inner.receiver;
        }
        match at {
            syn::Expr::Call(base) => {
                if let Some(line) = Refusals::line(base) {
                    self.tell(line, has_remedy);
                }
                base.args.iter().for_each(|arg| self.visit_expr(arg));
                if Refusals::line(base).is_none() {
                    self.visit_expr(&base.func);
                }
            }
            other => self.visit_expr(other),
        }
        chain.iter().flat_map(|c| &c.args).for_each(|arg| self.visit_expr(arg));
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let Some(line) = Refusals::line(call) {
            self.tell(line, false);
        }
        visit::visit_expr_call(self, call);
    }
}

/// What users read ends with what to do.
#[test]
fn refusals_have_remedies() {
    // What the host program, or a setting, gets wrong; and texts that say it all.
    const OTHERS: &[&str] = &[
        "runtime/",
        "cuda/",
        "ffi/",
        "emulate/",
        "capi/",
        "inline/parse.rs",
        "error.rs",
    ];
    let (mut found, mut bare) = (0, vec![]);
    for source in all() {
        if OTHERS.iter().any(|path| source.path.starts_with(path)) || source.path.ends_with("tests.rs") {
            continue;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.path);
        let text = std::fs::read_to_string(path).unwrap();
        if !text.contains("Error::") {
            continue;
        }
        let file = syn::parse_file(&text).unwrap();
        let mut refusals = Refusals::default();
        refusals.visit_file(&file);
        found += refusals.found;
        bare.extend(refusals.bare.iter().map(|line| format!("src/{}:{line}", source.path)));
    }
    assert!(bare.is_empty(), "errors without a remedy: {bare:?}");
    assert!(found > 100, "only {found} errors");
}

#[test]
fn the_finder_of_bare_refusals_finds() {
    let lines = |code: &str| {
        let mut refusals = Refusals::default();
        refusals.visit_file(&syn::parse_file(code).unwrap());
        refusals.bare
    };
    assert_eq!(lines("fn f() { Err(Error::invalid(\"x\").got(1)) }"), [1]);
    assert_eq!(lines("fn f() { g(Error::unsupported(a)) }"), [1]);
    assert_eq!(
        lines("fn f() { Err(Error::invalid(\"x\").got(1).remedy(\"y\").at(z)) }"),
        [0; 0]
    );
    assert_eq!(lines("fn f() { a.b(|| Error::invalid(\"x\")).c() }"), [1]);
    assert_eq!(
        lines("fn f() { let wrong = || Error::invalid(\"x\"); wrong().remedy(\"y\") }"),
        [0; 0]
    );
}
