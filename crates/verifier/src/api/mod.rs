//! The HTTP API of a run, with the paths of MongoDB's own verifier.
//!
//! | path                        | what                                                              |
//! | ---                         | ---                                                               |
//! | `POST /api/v1/check`        | begin, where the run was started with `--wait`; takes `{filter}`  |
//! | `POST /api/v1/writesOff`    | nobody writes any more: check to the end                          |
//! | `GET /api/v1/progress`      | phase, generation, counts, how far the changes are known          |
//! | `GET /api/v1/summary`       | collections with their counts, and what is different so far       |
//! | `GET /api/v1/docMismatches` | a line of JSON for each document, those that differ longest first |
//! | `GET /api/v1/nsMismatches`  | a line of JSON for each difference of collections and indexes     |
//! | `GET /metrics`              | for Prometheus                                                    |
//!
//! It listens where `--listen` says and asks for no password: bind it to an address that only those
//! can reach who may see the names and `_id`s of documents. It ends with the run.

mod answers;
mod metrics;

use crate::beginning::check_filter;
use crate::error::VerifyError;
use crate::scan::Shared;
use crate::settings::Settings;
use crate::status::Control;
use answers::Mismatches;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

/// What the API answers from. There is no run yet while it waits to begin.
#[derive(Clone)]
pub struct Api {
    pub control: Control,
    pub settings: Arc<Settings>,
    pub run: Arc<OnceLock<Arc<Shared>>>,
    /// Held by whoever is about to begin the run.
    pub beginning: Arc<Mutex<()>>,
}

impl Api {
    /// Serves until it is dropped; says on standard error where.
    pub async fn serve(self, address: &str) -> Result<ServingApi, VerifyError> {
        let wrong = |error: std::io::Error| {
            VerifyError::settings(format!(
                "cannot listen on {address} ({error}): give another address with --listen, such as 127.0.0.1:0 for any free port"
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        self.control.listens_on(address);
        let routes = Router::new()
            .route("/api/v1/check", post(check))
            .route("/api/v1/writesOff", post(writes_off))
            .route("/api/v1/progress", get(progress))
            .route("/api/v1/summary", get(summary))
            .route("/api/v1/docMismatches", get(document_mismatches))
            .route("/api/v1/nsMismatches", get(namespace_mismatches))
            .route("/metrics", get(metrics_page))
            .fallback(no_such_path)
            .method_not_allowed_fallback(wrong_method)
            .with_state(self);
        let serving = tokio::spawn(async move {
            // It only ever ends by being aborted.
            let _ = axum::serve(listener, routes).await;
        });
        eprintln!("The HTTP API listens on http://{address}/api/v1/progress");
        Ok(ServingApi(serving))
    }
}

/// A running API; it ends with this value.
pub struct ServingApi(tokio::task::JoinHandle<()>);

impl Drop for ServingApi {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn as_json(code: StatusCode, body: &Json) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (code, headers, format!("{body}\n")).into_response()
}

fn refused(code: StatusCode, why: &str) -> Response {
    as_json(
        code,
        &json!({"success": false, "error": code.canonical_reason(), "errorDescription": why}),
    )
}

fn failed(error: &VerifyError) -> Response {
    let code = match error {
        VerifyError::Settings(_) => StatusCode::BAD_REQUEST,
        VerifyError::Unreachable { .. }
        | VerifyError::Interrupted(_)
        | VerifyError::Credentials { .. }
        | VerifyError::Privilege { .. }
        | VerifyError::State { .. }
        | VerifyError::Stopped
        | VerifyError::NoChanges { .. }
        | VerifyError::Server { .. }
        | VerifyError::WentBack { .. }
        | VerifyError::Malformed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refused(code, &error.to_string())
}

async fn no_such_path() -> Response {
    let why = "there is no such path: see /api/v1/progress, /api/v1/summary, /api/v1/docMismatches, /api/v1/nsMismatches and /metrics";
    refused(StatusCode::NOT_FOUND, why)
}

async fn wrong_method(method: Method) -> Response {
    let why = format!(
        "{method} is not the method of this path: POST is for check and writesOff, GET for all others"
    );
    refused(StatusCode::METHOD_NOT_ALLOWED, &why)
}

/// One JSON document in each line.
fn as_lines(lines: Vec<Json>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    (headers, text).into_response()
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct CheckRequest {
    filter: Option<Json>,
}

async fn check(State(api): State<Api>, body: Bytes) -> Response {
    let request: CheckRequest = match body.is_empty() {
        true => CheckRequest::default(),
        false => match serde_json::from_slice(&body) {
            Ok(request) => request,
            Err(error) => return refused(StatusCode::BAD_REQUEST, &error.to_string()),
        },
    };
    let _beginning = api.beginning.lock().await;
    if api.control.asked().begin {
        return refused(
            StatusCode::CONFLICT,
            "the check has begun already: start the verifier with --wait to begin it from here",
        );
    }
    if let Some(filter) = request.filter {
        match crate::cluster::parse_filter(&filter.to_string()) {
            Ok(filter) => {
                if let Err(error) = check_filter(&api.settings, &filter).await {
                    return failed(&error);
                }
                api.control.set_filter(filter);
            }
            Err(error) => return failed(&error),
        }
    }
    api.control.begin();
    as_json(StatusCode::OK, &json!({"success": true}))
}

async fn writes_off(State(api): State<Api>) -> Response {
    api.control.writes_off();
    as_json(StatusCode::OK, &json!({"success": true}))
}

async fn progress(State(api): State<Api>) -> Response {
    let body = match api.run.get() {
        Some(run) => answers::progress(run),
        None => json!({"progress": {"phase": "idle", "generation": 0, "error": null}}),
    };
    as_json(StatusCode::OK, &body)
}

async fn summary(State(api): State<Api>) -> Response {
    match api.run.get() {
        None => as_json(StatusCode::OK, &json!({"summary": {"phase": "idle"}})),
        Some(run) => match answers::summary(run).await {
            Ok(body) => as_json(StatusCode::OK, &body),
            Err(error) => failed(&error),
        },
    }
}

async fn document_mismatches(
    State(api): State<Api>,
    wanted: Result<Query<Mismatches>, QueryRejection>,
) -> Response {
    let wanted = match wanted {
        Ok(Query(wanted)) => wanted,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    match api.run.get() {
        None => as_lines(Vec::new()),
        Some(run) => match wanted.list(run).await {
            Ok(lines) => as_lines(lines),
            Err(error) => failed(&error),
        },
    }
}

async fn namespace_mismatches(State(api): State<Api>) -> Response {
    let metadata = api.run.get().map(|run| run.status.metadata());
    let lines = metadata.iter().flatten().map(answers::namespace_mismatch);
    as_lines(lines.collect())
}

async fn metrics_page(State(api): State<Api>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let page = api.run.get().map(|run| metrics::page(run));
    ([(header::CONTENT_TYPE, TYPE)], page.unwrap_or_default()).into_response()
}
