//! The expected results were taken from MongoDB 6.0.

use super::*;

const SUBJECTS: [&str; 17] = [
    "é", "É", "e", "K", "\u{212a}", "ſ", "a\n", "a\nb", "٣", "ａ", " ", "\u{a0}", "x-y", "ẞ", "ß",
    "ss", "日本",
];

fn check(pattern: &str, options: &str, expected: &[usize]) {
    let regex = Regex::new(pattern, options).expect("a valid pattern");
    let found: Vec<usize> = (0..SUBJECTS.len())
        .filter(|&at| regex.is_match(SUBJECTS[at]))
        .collect();
    assert_eq!(found, expected, "/{pattern}/{options}");
}

#[test]
fn matches_as_perl_does() {
    const ALL: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    check("^.$", "", &[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14]);
    check("^.$", "m", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14]);
    check("É", "", &[1]);
    check("É", "i", &[0, 1]);
    check("k", "i", &[3, 4]);
    check("s", "", &[15]);
    check("s", "i", &[5, 15]);
    check(r"\w", "", &[2, 3, 6, 7, 12, 15]);
    check(r"\w", "i", &[2, 3, 6, 7, 12, 15]);
    check(r"\d", "", &[]);
    check(r"\s", "", &[6, 7, 10]);
    check("a$", "", &[6]);
    check("a$", "m", &[6, 7]);
    check("^b", "", &[]);
    check("^b", "m", &[7]);
    check("^$", "m", &[]);
    check("[[:alpha:]]", "", &[2, 3, 6, 7, 12, 15]);
    check("(?i)é", "", &[0, 1]);
    check(
        r"(*UCP)\w",
        "",
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16],
    );
    check(r"\bé", "", &[]);
    check("ß", "", &[14]);
    check("ß", "i", &[13, 14]);
    check(r"a\z", "", &[]);
    check(r"\h", "", &[10, 11]);
    check(r"(?<n>a)\n", "", &[6, 7]);
    check(r"\Qa\E", "", &[6, 7]);
    check("a{", "", &[]);
    check("[]a]", "", &[6, 7]);
    check("a++", "", &[6, 7]);
    check("(*UTF8)a", "", &[6, 7]);
    check(r"\N", "", &ALL);
    check("a.b", "", &[]);
    check("a.b", "s", &[7]);
    check("a b # c\n", "x", &[]);
    check("x\\-y|ss", "", &[12, 15]);
    check("^(?:x|s)[-s]y?$", "", &[12, 15]);
    check("s{2}", "", &[15]);
    check("s{3,}", "", &[]);
}

#[test]
fn refuses_what_perl_refuses() {
    for (pattern, options, code) in [
        ("(", "", 51091),
        (")", "", 51091),
        ("[", "", 51091),
        ("[z-a]", "", 51091),
        ("a**", "", 51091),
        ("*a", "", 51091),
        ("a|*", "", 51091),
        (r"\u0061", "", 51091),
        (r"\1", "", 51091),
        ("\\", "", 51091),
        ("(?", "", 51091),
        ("a{2,1}", "", 51091),
        ("x{70000}", "", 51091),
        (r"\p{Foo}", "", 51091),
        ("[[:foo:]]", "", 51091),
        ("a", "z", 51108),
        ("a", "l", 51108),
        ("a", "i\0", 51108),
        ("a\0b", "", 2),
    ] {
        let refused = Regex::new(pattern, options).expect_err(pattern);
        assert_eq!(refused.code.0, code, "/{pattern}/{options}: {refused}");
    }
    for options in ["u", "imsx", "smi", "ii"] {
        Regex::new("a", options).expect("valid options");
    }
}

#[test]
fn runaway_patterns_end_without_a_match() {
    let subject = format!("{}b", "a".repeat(5000));
    for pattern in ["(a+)+$", "(a|aa)+$", r"(a*)*c\1"] {
        assert!(
            !Regex::new(pattern, "").unwrap().is_match(&subject),
            "{pattern}"
        );
    }
}

#[test]
fn plain_patterns_avoid_backtracking() {
    for (pattern, options, plain) in [
        ("^abc", "", true),
        ("abc", "i", true),
        ("a.*b|c+?", "", true),
        (r"^\d{3}-\w+$", "", true),
        ("[a-z0-9_]+", "", true),
        (r"\bword", "", false),
        ("a(?=b)", "", false),
        (r"(a)\1", "", false),
        ("^a", "m", false),
        ("é", "i", false),
    ] {
        let regex = Regex::new(pattern, options).unwrap();
        assert_eq!(matches!(regex.engine, Engine::Plain(_)), plain, "{pattern}");
    }
}

#[test]
fn anchored_patterns_have_a_prefix() {
    for (pattern, options, expected) in [
        ("^abc", "", Some(("abc", true))),
        (r"^a\.b", "", Some(("a.b", true))),
        (r"\Aabc", "", Some(("abc", true))),
        (r"\Aabc", "m", Some(("abc", true))),
        ("^abc", "m", None),
        ("^abc", "i", None),
        ("^abc", "s", Some(("abc", true))),
        ("abc", "", None),
        ("^abc*", "", Some(("ab", false))),
        ("^abc?", "", Some(("ab", false))),
        ("^abc{0,1}", "", Some(("ab", false))),
        ("^abc+", "", Some(("abc", false))),
        ("^abc.*", "", Some(("abc", false))),
        ("^abc$", "", Some(("abc", false))),
        ("^ab|c", "", None),
        (r"^a\d", "", Some(("a", false))),
        ("^", "", None),
        ("^a*", "", None),
    ] {
        let found = Regex::new(pattern, options).unwrap().prefix();
        let expected = expected.map(|(text, is_exact)| Prefix {
            text: text.to_owned(),
            is_exact,
        });
        assert_eq!(found, expected, "/{pattern}/{options}");
    }
}

/// Both engines must agree wherever the pattern is translated.
#[test]
fn translation_keeps_the_meaning() {
    let subjects = SUBJECTS.iter().copied().chain([
        "", "\n", "\n\n", "abc", "ABC", "a-b_c.d", "a:b", "x@y.z", "123", "12", "(a)", "a+b",
        "a\n\n",
    ]);
    let subjects: Vec<&str> = subjects.collect();
    for pattern in [
        "^$",
        "^.*$",
        "a|b$",
        "^a|c$",
        "[a-c]+$",
        "[^a-c]",
        "[.,:;@]",
        "[?+*()]",
        r"[\w.-]",
        r"\D",
        r"\W",
        r"\S",
        r"^\d{3}$",
        "x?",
        "(?:ab)+c",
        "(a|x)(b|-)",
        "a.?b",
        r"\(a\)",
        "a*?b",
        "^",
        "$",
        "a{0,2}b",
        "[a-z]{2,}",
        "^^a",
        "K",
    ] {
        for options in ["", "i", "s", "is"] {
            let parsed = Options::parse(options).unwrap();
            let Some(_) = plain::translate(pattern, parsed) else {
                continue;
            };
            let plain = Regex::new(pattern, options).unwrap();
            // A comment is nothing to PCRE2 and unknown to the translation.
            let perl = Regex::new(&format!("(?#x){pattern}"), options).unwrap();
            assert!(matches!(perl.engine, Engine::Perl(_)));
            for subject in &subjects {
                assert_eq!(
                    plain.is_match(subject),
                    perl.is_match(subject),
                    "/{pattern}/{options} on {subject:?}"
                );
            }
        }
    }
}
