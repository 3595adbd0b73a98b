//! `terndb verify` as a process: exit codes, the report file, and what mistakes are answered with.

use anyhow::{Context, Result, ensure};
use differential::server::{Server, start_mongod};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn verify(arguments: &[&str]) -> Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_terndb"))
        .arg("verify")
        .args(arguments)
        .output()
        .context("cannot run terndb")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn insert(server: &Server, documents: &[(i32, &str)]) -> Result<()> {
    insert_into(server, "shop", documents)
}

fn insert_into(server: &Server, database: &str, documents: &[(i32, &str)]) -> Result<()> {
    let documents: Vec<bson::Document> = documents
        .iter()
        .map(|(id, name)| bson::doc! {"_id": id, "name": name})
        .collect();
    let command = bson::doc! {"insert": "people", "documents": documents, "$db": database};
    let mut client = wire::client::Client::connect(server.address.as_str())?;
    let reply = client.command_bytes(&command.to_vec()?)?;
    let reply = bson::Document::from_reader(reply)?;
    ensure!(
        reply.get_i32("n").is_ok_and(|inserted| inserted > 0),
        "{reply}"
    );
    Ok(())
}

#[test]
fn exit_codes_and_reports() -> Result<()> {
    let (source, destination) = (start_mongod()?, start_mongod()?);
    let from = format!("mongodb://{}", source.address);
    let to = format!("mongodb://{}", destination.address);
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.json");
    let state = folder.path().join("state");
    let config = folder.path().join("verify.toml");
    let settings = format!(
        "from = '{from}'\nto = '{to}'\nwrites_off = true\nreport = {report:?}\nstate = {state:?}\n"
    );
    std::fs::write(&config, settings)?;
    let config = config.to_str().context("a path of text")?;
    let check = |code: i32, shown: &str, outcome: &str| -> Result<()> {
        let output = verify(&["--config", config])?;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.code() == Some(code), "{out}{err}");
        ensure!(out.contains(shown), "{shown}: {out}");
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
        ensure!(json["outcome"] == outcome, "{json}");
        Ok(())
    };
    insert(&source, &[(1, "Ada"), (2, "Grace")])?;
    insert(&destination, &[(1, "Ada"), (2, "Grace")])?;
    check(0, "EQUAL", "equal")?;
    insert(&source, &[(3, "Edsger")])?;
    insert(&destination, &[(3, "Tony")])?;
    check(1, "\"Edsger\" (string)", "different")?;
    let output = verify(&[
        "--from",
        &from,
        "--to",
        &to,
        "--writes-off",
        "--state",
        state.to_str().context("a path of text")?,
        "--filter",
        r#"{"_id": {"$lt": 3}}"#,
    ])?;
    ensure!(output.status.code() == Some(0), "{}", text(&output.stderr));
    let output = verify(&[
        "--from",
        &from,
        "--to",
        &to,
        "--writes-off",
        "--state",
        state.to_str().context("a path of text")?,
        "--filter",
        r#"{"$not": 3}"#,
    ])?;
    ensure!(output.status.code() == Some(2), "{}", text(&output.stdout));
    let shown = text(&output.stderr);
    ensure!(shown.contains("refuses the filter"), "{shown}");
    Ok(())
}

/// Whoever started it may go (`| head`), or keep the run in a cluster that is verified: neither shows.
#[test]
fn verdicts_do_not_depend_on_who_reads_them_or_where_the_run_is_kept() -> Result<()> {
    let (source, destination) = (start_mongod()?, start_mongod()?);
    let from = format!("mongodb://{}", source.address);
    let to = format!("mongodb://{}", destination.address);
    insert(&source, &[(1, "Ada"), (2, "Grace")])?;
    insert(&destination, &[(1, "Ada"), (2, "Grace")])?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (state, report) = (path("state"), path("report.json"));
    let clusters = ["--from", &from, "--to", &to, "--writes-off"];
    let equal = |output: Output| -> Result<()> {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.code() == Some(0), "{out}{err}");
        Ok(())
    };
    equal(verify(&[clusters.as_slice(), &["--meta", &to]].concat())?)?;
    let arguments = [clusters.as_slice(), &["--state", &state]].concat();
    equal(verify(&arguments)?)?;
    let (reader, unread) = std::io::pipe()?;
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_terndb"))
        .arg("verify")
        .args(arguments)
        .args(["--report", &report])
        .stdout(unread)
        .stderr(Stdio::piped())
        .spawn()?
        .wait_with_output()?;
    equal(output)?;
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    ensure!(json["outcome"] == "equal", "{json}");
    Ok(())
}

#[test]
fn a_run_without_a_verdict_leaves_no_report() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.json");
    let report_path = report.to_str().context("a path of text")?;
    let clusters = ["--from", "a", "--to", "b", "--writes-off"];
    let output = verify(&[clusters.as_slice(), &["--report", report_path]].concat())?;
    ensure!(output.status.code() == Some(2), "{}", text(&output.stderr));
    ensure!(!report.exists());
    // One of an earlier run stays.
    std::fs::write(&report, "earlier")?;
    let output = verify(&[clusters.as_slice(), &["--report", report_path]].concat())?;
    ensure!(output.status.code() == Some(2), "{}", text(&output.stderr));
    ensure!(std::fs::read_to_string(&report)? == "earlier");
    ensure!(std::fs::read_dir(folder.path())?.count() == 1);
    Ok(())
}

#[test]
fn mistakes_are_one_sentence_and_exit_code_2() -> Result<()> {
    let cases: [(&[&str], &str); 5] = [
        (&["--from", "mongodb://a"], "--to is missing"),
        (
            &["--from", "mongodb://a", "--to", "mongodb://a"],
            "are the same",
        ),
        (&["--from", "a", "--to", "b", "--writes-off"], "URI of the"),
        (
            &["--config", "/nowhere/at/all"],
            "cannot read the configuration file",
        ),
        (
            &[
                "--from",
                "mongodb://a",
                "--to",
                "mongodb://b",
                "--writes-off",
                "--report",
                "/nowhere/at/all",
            ],
            "cannot write the report",
        ),
    ];
    for (arguments, expected) in cases {
        let output = verify(arguments)?;
        let shown = text(&output.stderr);
        ensure!(output.status.code() == Some(2), "{arguments:?}: {shown}");
        ensure!(
            shown.contains(expected) && shown.lines().count() == 1,
            "{expected}: {shown}"
        );
    }
    Ok(())
}

/// A run that goes on, once it has scanned the one collection; and what else it says.
fn start_and_scan(arguments: &[&str]) -> Result<(Child, Lines<BufReader<ChildStderr>>)> {
    let mut running = Command::new(env!("CARGO_BIN_EXE_terndb"))
        .arg("verify")
        .args(arguments)
        .args(["--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let errors = running.stderr.take().context("standard error")?;
    let mut lines = BufReader::new(errors).lines();
    let listening = lines.next().context("a line")??;
    let address = listening
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next())
        .with_context(|| listening.clone())?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !progress(address)?.contains("\"completedTasks\":1") {
        ensure!(Instant::now() < deadline, "{}", progress(address)?);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((running, lines))
}

fn refused(arguments: &[&str], expected: &str) -> Result<()> {
    let output = verify(arguments)?;
    let shown = text(&output.stderr);
    ensure!(output.status.code() == Some(2), "{arguments:?}: {shown}");
    ensure!(
        shown.contains(expected) && shown.lines().count() == 1,
        "{expected}: {shown}"
    );
    Ok(())
}

/// A second process is sent away while the first lives, and goes on with its run when it was killed.
#[test]
fn one_process_at_a_time_works_on_a_run() -> Result<()> {
    let (source, destination) = (start_mongod()?, start_mongod()?);
    insert(&source, &[(1, "Ada")])?;
    insert(&destination, &[(1, "Ada")])?;
    let from = format!("mongodb://{}", source.address);
    let to = format!("mongodb://{}", destination.address);
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state").display().to_string();
    for kept in [["--state", &state], ["--meta", &to]] {
        let arguments = [["--from", &from], ["--to", &to], kept].concat();
        let (mut running, _lines) = start_and_scan(&arguments)?;
        let owner = match kept[0] {
            "--meta" => format!("in use by process {} on ", running.id()),
            _ => "in use by another process".to_owned(),
        };
        refused(&arguments, &owner)?;
        refused(&[arguments.as_slice(), &["--restart"]].concat(), &owner)?;
        ensure!(running.try_wait()?.is_none(), "it goes on");
        insert(&source, &[(2, "Grace")])?;
        running.kill()?;
        running.wait()?;
        let output = verify(&[arguments.as_slice(), &["--writes-off"]].concat())?;
        let shown = text(&output.stdout) + &text(&output.stderr);
        ensure!(output.status.code() == Some(1), "{shown}");
        ensure!(
            shown.contains("DIFFERENT: 1 document (1 missing"),
            "{shown}"
        );
        insert(&destination, &[(2, "Grace")])?;
        delete_again(&[&source, &destination])?;
    }
    Ok(())
}

fn delete_again(servers: &[&Server]) -> Result<()> {
    let delete = bson::doc! {"q": {"_id": 2}, "limit": 1};
    let command = bson::doc! {"delete": "people", "deletes": [delete], "$db": "shop"};
    for server in servers {
        let mut client = wire::client::Client::connect(server.address.as_str())?;
        client.command_bytes(&command.to_vec()?)?;
    }
    Ok(())
}

/// Under another spelling of its address as well. A mistake leaves nothing in the way of the next try.
#[test]
fn a_cluster_is_compared_with_itself_only_under_other_names() -> Result<()> {
    let server = start_mongod()?;
    insert(&server, &[(1, "Ada")])?;
    let from = format!("mongodb://{}", server.address);
    let to = format!("mongodb://{}/?appName=another", server.address);
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state").display().to_string();
    let arguments = [
        "--from",
        &from,
        "--to",
        &to,
        "--writes-off",
        "--quiet",
        "--state",
        &state,
    ];
    let with = |more: &[&'static str]| [arguments.as_slice(), more].concat();
    refused(&arguments, "shop.people would be compared with itself")?;
    refused(&with(&["--include", "nothing"]), "no collection matches")?;
    let renamed = ["--include", "shop", "--map", "shop=copy"];
    let output = verify(&with(&renamed))?;
    let shown = text(&output.stdout) + &text(&output.stderr);
    ensure!(output.status.code() == Some(1), "{shown}");
    ensure!(shown.contains("and 1 other thing in shop.* ("), "{shown}");
    insert_into(&server, "copy", &[(1, "Ada")])?;
    let output = verify(&with(&renamed))?;
    let shown = text(&output.stdout) + &text(&output.stderr);
    ensure!(output.status.code() == Some(0), "{shown}");
    Ok(())
}

#[test]
fn damaged_state_is_named_and_can_be_given_up() -> Result<()> {
    let (source, destination) = (start_mongod()?, start_mongod()?);
    insert(&source, &[(1, "Ada")])?;
    insert(&destination, &[(1, "Ada")])?;
    let from = format!("mongodb://{}", source.address);
    let to = format!("mongodb://{}", destination.address);
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let state_text = state.display().to_string();
    let arguments = ["--from", &from, "--to", &to, "--state", &state_text];
    let (mut running, _lines) = start_and_scan(&arguments)?;
    running.kill()?;
    running.wait()?;
    for file in std::fs::read_dir(state.join("run"))? {
        let file = file?;
        if file.file_type()?.is_file() {
            std::fs::write(file.path(), "not what it was")?;
        }
    }
    let last = ["--writes-off"];
    refused(
        &[arguments.as_slice(), &last].concat(),
        "begin anew with --restart",
    )?;
    let output = verify(&[arguments.as_slice(), &last, &["--restart"]].concat())?;
    ensure!(output.status.code() == Some(0), "{}", text(&output.stderr));
    let file = folder.path().join("file");
    std::fs::write(&file, "")?;
    let file = file.display().to_string();
    let arguments = ["--from", &from, "--to", &to, "--state", &file];
    refused(
        &arguments,
        "name a directory that can be written to with --state",
    )
}

/// A run while clusters are written: stopped by a signal, resumed, and ended by word that writes are off.
#[test]
fn a_stopped_run_goes_on() -> Result<()> {
    let (source, destination) = (start_mongod()?, start_mongod()?);
    insert(&source, &[(1, "Ada")])?;
    insert(&destination, &[(1, "Ada")])?;
    let from = format!("mongodb://{}", source.address);
    let to = format!("mongodb://{}", destination.address);
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let html = folder.path().join("report.html");
    let state_text = state.to_str().context("a path of text")?;
    let mut arguments = vec!["--from", &from, "--to", &to, "--state", state_text];
    let (mut running, lines) = start_and_scan(&arguments)?;
    // A change that only a resumed run can find without reading everything again.
    insert(&source, &[(2, "Grace")])?;
    let signal = Command::new("kill")
        .args(["-INT", &running.id().to_string()])
        .status()?;
    ensure!(signal.success());
    ensure!(running.wait()?.code() == Some(2));
    let last = lines.last().context("a line")??;
    ensure!(last.contains("start again with the same options"), "{last}");
    ensure!(state.join("run").exists());

    arguments.extend(["--writes-off", "--html"]);
    arguments.push(html.to_str().context("a path of text")?);
    let output = verify(&arguments)?;
    let shown = text(&output.stdout);
    ensure!(
        output.status.code() == Some(1),
        "{shown}{}",
        text(&output.stderr)
    );
    ensure!(
        shown.contains("missing _id {\"$numberInt\":\"2\"}"),
        "{shown}"
    );
    ensure!(std::fs::read_to_string(&html)?.contains("shop.people"));
    ensure!(!state.exists());
    Ok(())
}

fn progress(address: &str) -> Result<String> {
    let mut connection = TcpStream::connect(address)?;
    let request = "GET /api/v1/progress HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes())?;
    let mut reply = String::new();
    connection.read_to_string(&mut reply)?;
    Ok(reply)
}
