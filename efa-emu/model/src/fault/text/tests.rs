use super::*;

fn complaint(text: &str) -> String {
    let complaint = text.parse::<Fault>();
    complaint.expect_err(text).to_string()
}

#[test]
fn every_key_and_action_survives_its_text() {
    for text in [
        r#"{ when = { packet = "HANDSHAKE" }, then = "hold" }"#,
        r#"{ label = "k", when = { packet = ["CTS", "EOR", "200"], msg-id = 7, sender = "alpha",
             receiver = "fe80::1", source-qpn = 3, destination-qpn = 4, min-length = 1,
             max-length = 8928, repeated = false, nth = 2, every = 3, count = 4 },
             then = { hold-packets = 20 } }"#,
        r#"{ when = { on = "answer", operation = "read", status = "remote-rnr" }, then = "drop" }"#,
        r#"{ when = { operation = "write" }, then = "lose" }"#,
        r#"{ when = {}, then = "duplicate" }"#,
        r#"{ when = { packet = "CTS" }, then = "repeat" }"#,
        r#"{ when = {}, then = { delay = "5ms" } }"#,
        r#"{ when = {}, then = { delay = ["10us", "1s"] } }"#,
        r#"{ when = {}, then = { status = "remote-bad-address" } }"#,
        r#"{ when = {}, then = { not-ready = 4 } }"#,
        r#"{ when = { nth = 2 }, then = { release = "k" } }"#,
        r#"{ when = { on = "registration", host = "beta", nth = 2 }, then = { fail = "ENOMEM" } }"#,
        r#"{ when = { on = "queue-pair", host = "beta" }, then = { qpn = 17 } }"#,
        r#"{ when = { on = "command", command = "create-qp" }, then = { fail = "EINVAL" } }"#,
        r#"{ when = { on = "command", host = "vm1" }, then = "lose" }"#,
        r#"{ when = { on = "command" }, then = { delay = "5ms" } }"#,
        r#"{ then = { cut = ["alpha", "beta"] } }"#,
        r#"{ then = { heal = ["alpha", "beta"] } }"#,
        r#"{ when = { nth = 100 }, then = { kill = "beta" } }"#,
        r#"{ then = { remove = "beta" } }"#,
        r#"{ when = { nth = 2 }, then = { restore = "beta" } }"#,
        r#"{ then = { qp-error = "beta" } }"#,
        r#"{ when = { nth = 3 }, then = { qp-error = { host = "beta", qpn = 7 } } }"#,
        r#"{ then = { port-speed = { host = "beta", gbps = 400 } } }"#,
        r#"{ when = { nth = 2 }, then = { port-speed = { host = "fe80::1", gbps = 25 } } }"#,
        r#"{ then = { cq-error = "fe80::1" } }"#,
        r#"{ then = { cq-error = { host = "beta", qpn = 0 } } }"#,
    ] {
        let fault: Fault = text
            .parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        let shown = fault.to_string();
        assert_eq!(shown.parse::<Fault>().as_ref(), Ok(&fault), "{shown}");
        assert!(!shown.contains('\n'), "{shown}");
    }
}

#[test]
fn braces_may_be_left_out() {
    let with: Fault = r#"{ then = { kill = "a" } }"#.parse().unwrap();
    assert_eq!(r#"then = { kill = "a" }"#.parse(), Ok(with));
}

#[test]
fn errors_name_key_value_and_remedy() {
    for (text, expected) in [
        (r#"then = "hold""#, ["when:", "is missing"]),
        (r#"when = {}"#, ["the rule:", "`then`"]),
        (r#"when = {}, then = "hodl""#, ["then", "`hold`"]),
        (
            r#"when = { packet = "RTX" }, then = "hold""#,
            ["when.packet:", "\"RTX\""],
        ),
        (
            r#"when = { packets = "CTS" }, then = "hold""#,
            ["packets", "`packet`"],
        ),
        (
            r#"when = { operation = "get" }, then = "hold""#,
            ["when.operation:", "\"get\""],
        ),
        (
            r#"when = { source-qpn = 70000 }, then = "hold""#,
            ["when.source-qpn:", "70000"],
        ),
        (
            r#"when = {}, then = { delay = "5" }"#,
            ["then", "\"5\" is not a duration"],
        ),
        (
            r#"when = {}, then = { delay = ["5ms", "1ms"] }"#,
            ["then", "wrong way round"],
        ),
        (
            r#"when = {}, then = { fail = "ENOMEM" }"#,
            ["then:", "\"registration\""],
        ),
        (
            r#"when = { status = "ok" }, then = "drop""#,
            ["when.status:", "on = \"answer\""],
        ),
        (
            r#"when = { host = "a" }, then = "drop""#,
            ["when.host:", "`sender`"],
        ),
        (
            r#"when = { on = "queue-pair", packet = "CTS" }, then = { qpn = 4 }"#,
            ["when.packet:", "`host`"],
        ),
        (
            r#"when = { on = "command", command = "make-qp" }, then = "lose""#,
            ["when.command:", "`create-qp`"],
        ),
        (
            r#"when = { on = "queue-pair", command = "create-qp" }, then = { qpn = 4 }"#,
            ["when.command:", "on = \"command\""],
        ),
        (
            r#"when = { on = "command" }, then = "hold""#,
            ["then:", "\"command\""],
        ),
        (
            r#"when = { nth = 0 }, then = "drop""#,
            ["when.nth:", "from 1"],
        ),
        (
            r#"when = {}, then = { not-ready = 0 }"#,
            ["then:", "1 or more"],
        ),
        (r#"when = { , then"#, ["the rule:", "when ="]),
        (r#"then = { cut = ["a", "a"] }"#, ["then:", "\"a\" twice"]),
        (
            r#"when = { packet = "CTS", operation = "read" }, then = "hold""#,
            ["when.operation:", "`packet`"],
        ),
        (
            r#"when = { min-length = 5, max-length = 3 }, then = "hold""#,
            ["when.min-length:", "max-length"],
        ),
        (
            r#"when = { msg-id = "x" }, then = "hold""#,
            ["when.msg-id:", "from 0 to 4294967295"],
        ),
        (
            r#"when = {}, then = "delay""#,
            ["then.delay:", "then = { delay = \"5ms\" }"],
        ),
        (
            r#"when = {}, then = { hold = 1 }"#,
            ["then.hold:", "then = \"hold\""],
        ),
        (
            r#"when = {}, then = { not-ready = "x" }"#,
            ["then.not-ready:", "then = { not-ready = 4 }"],
        ),
        (
            r#"when = { on = "registration" }, then = { fail = 12 }"#,
            ["then.fail:", "then = { fail = \"ENOMEM\" }"],
        ),
        (
            r#"then = { qp-error = { host = "a", number = 7 } }"#,
            ["then.qp-error:", "expected a host as text"],
        ),
        (r#"then = { cq-error = 7 }"#, ["then.cq-error:", "qpn = 77"]),
        (
            r#"then = { port-speed = { host = "a", gbps = 300 } }"#,
            [
                "then.port-speed:",
                "300 is not a link speed in Gbit/s: use one of 25",
            ],
        ),
        (
            r#"then = { port-speed = "a" }"#,
            ["then.port-speed:", "gbps = 200"],
        ),
    ] {
        let error = complaint(text);
        for part in expected {
            assert!(error.contains(part), "{text}\n{error}\nlacks {part}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn files_name_their_rules() {
    let rules = parse_file(
        "f.toml",
        "[[fault]]\nlabel = \"a\"\nwhen.packet = \"CTS\"\nthen = \"hold\"\n\
         [[fault]]\nthen.cut = [\"a\", \"b\"]\n",
    );
    assert_eq!(rules.unwrap().len(), 2);
    for (text, expected) in [
        ("", "f.toml: fault: there is none"),
        (
            "x = 1\n[[fault]]\nthen.kill = \"a\"",
            "f.toml: x: is not known",
        ),
        ("[[fault]]\nthen = ", "f.toml: line 2:"),
        (
            "[[fault]]\nthen.kill = \"a\"\n[[fault]]\nlabel = \"late\"\nwhen.nth = -1\nthen = \"hold\"",
            "f.toml: fault 2 (\"late\"): when.nth:",
        ),
    ] {
        let error = parse_file("f.toml", text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
