//! A simulated Prometheus: its HTTP API over a few generated series, with a part of PromQL.

mod expression;

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use promql_parser::{label::Matchers, parser::Expr};
use serde_json::{Value, json};

use self::expression::{Evaluated, Labels, Series};
use crate::simulator::{
    clock,
    query::Query,
    request::ApiRequest,
    response::{self, ApiResponse},
};

/// The path prefix of the API on the server of the simulator.
pub(crate) const PREFIX: &str = "/prometheus";

/// Handles a request below [`PREFIX`].
pub(crate) async fn answer(mut call: ApiRequest, path: &str) -> ApiResponse {
    match *call.request.method() {
        Method::GET => {}
        Method::POST => match call.body().await {
            Ok(body) => call.query.extend(Query::parse(&String::from_utf8_lossy(&body))),
            Err(failure) => return refuse(failure.code, &QueryError::bad_data(failure)),
        },
        _ => return response::text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n"),
    }
    let query = &call.query;
    let data = match path {
        "/-/healthy" | "/-/ready" => {
            return response::text(StatusCode::OK, "This Prometheus is simulated.\n");
        }
        "/api/v1/query" => instant(query),
        "/api/v1/query_range" => range(query),
        "/api/v1/series" => matching(query, true).map(|found| found.iter().map(Series::metric).collect()),
        "/api/v1/labels" => matching(query, false).map(|found| names(&found)),
        "/api/v1/metadata" => Ok(expression::metadata()),
        "/api/v1/status/buildinfo" => Ok(build_information()),
        path => match label_of(path) {
            Some(label) => matching(query, false).map(|found| values(&found, label)),
            None => return response::text(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
    };
    match data {
        Ok(data) => response::json(StatusCode::OK, &json!({ "status": "success", "data": data })),
        Err(refusal) => refuse(refusal.code(), &refusal),
    }
}

/// The error of a query.
#[derive(Debug)]
enum QueryError {
    /// The request is invalid.
    BadData(String),
    /// The expression is not supported here.
    Execution(String),
}

impl QueryError {
    fn bad_data(message: impl ToString) -> Self {
        Self::BadData(message.to_string())
    }

    /// Returns the error for an invalid parameter.
    fn parameter(name: &str, why: &str) -> Self {
        Self::BadData(format!("invalid parameter \"{name}\": {why}"))
    }

    fn code(&self) -> StatusCode {
        match self {
            Self::BadData(_) => StatusCode::BAD_REQUEST,
            Self::Execution(_) => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }
}

fn refuse(code: StatusCode, refusal: &QueryError) -> ApiResponse {
    let (kind, message) = match refusal {
        QueryError::BadData(message) => ("bad_data", message),
        QueryError::Execution(message) => ("execution", message),
    };
    response::json(code, &json!({ "status": "error", "errorType": kind, "error": message }))
}

fn instant(query: &Query) -> Result<Value, QueryError> {
    let time = moment(query, "time")?.unwrap_or_else(clock::now);
    Ok(match expression::evaluate(&expression(query)?, time)? {
        Evaluated::Scalar(value) => json!({ "resultType": "scalar", "result": sample(time, value) }),
        Evaluated::Vector(elements) => {
            let element =
                |(labels, value): &(Labels, f64)| json!({ "metric": labels, "value": sample(time, *value) });
            let result: Vec<Value> = elements.iter().map(element).collect();
            json!({ "resultType": "vector", "result": result })
        }
    })
}

fn range(query: &Query) -> Result<Value, QueryError> {
    let range = Range::from_query(query)?;
    let expression = expression(query)?;
    let mut series = BTreeMap::<Labels, Vec<Value>>::new();
    for time in range.times() {
        let elements = match expression::evaluate(&expression, time)? {
            Evaluated::Scalar(value) => vec![(Labels::new(), value)],
            Evaluated::Vector(elements) => elements,
        };
        for (labels, value) in elements {
            series.entry(labels).or_default().push(sample(time, value));
        }
    }
    let result: Vec<Value> =
        series.into_iter().map(|(labels, values)| json!({ "metric": labels, "values": values })).collect();
    Ok(json!({ "resultType": "matrix", "result": result }))
}

fn expression(query: &Query) -> Result<Expr, QueryError> {
    let text = query.get("query").unwrap_or_default().trim();
    if text.is_empty() {
        return Err(QueryError::parameter(
            "query",
            "unknown position: parse error: no expression found in input",
        ));
    }
    if let Some(timeout) = query.get("timeout") {
        duration(timeout).ok_or_else(|| QueryError::parameter("timeout", "not a duration"))?;
    }
    expression::parse(text)
}

/// Returns the series that any `match[]` selects, or all series if there is no `match[]`.
///
/// With `required`, a missing `match[]` is an error.
fn matching(query: &Query, required: bool) -> Result<Vec<Series>, QueryError> {
    moment(query, "start")?;
    moment(query, "end")?;
    let selectors: Vec<Matchers> =
        query.all("match[]").map(expression::selector).collect::<Result<_, _>>()?;
    if required && selectors.is_empty() {
        return Err(QueryError::bad_data("no match[] parameter provided"));
    }
    let all = expression::all_series().into_iter();
    let is_selected =
        |series: &Series| selectors.iter().any(|selector| expression::matches(selector, series));
    Ok(all.filter(|series| selectors.is_empty() || is_selected(series)).collect())
}

fn names(found: &[Series]) -> Value {
    sorted(found.iter().flat_map(|series| series.labels()).map(|(name, _)| name).collect())
}

fn values(found: &[Series], label: &str) -> Value {
    sorted(found.iter().filter_map(|series| series.label(label)).collect())
}

fn sorted(mut texts: Vec<&str>) -> Value {
    texts.sort_unstable();
    texts.dedup();
    json!(texts)
}

/// Returns the label in `/api/v1/label/<name>/values`.
fn label_of(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/label/")?.strip_suffix("/values").filter(|label| !label.contains('/'))
}

fn sample(time: f64, value: f64) -> Value {
    let value = match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value => value.to_string(),
    };
    json!([(time * 1000.0).round() / 1000.0, value])
}

fn build_information() -> Value {
    json!({
        "version": "3.0.0-simulated",
        "revision": "simulated",
        "branch": "simulated",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "none: a simulation written in Rust",
    })
}

/// Parses a time in Unix seconds or RFC 3339.
fn moment(query: &Query, name: &str) -> Result<Option<f64>, QueryError> {
    let Some(text) = query.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let time = text.parse().ok().or_else(|| clock::parse(text)).filter(|time| time.abs() <= FARTHEST);
    let time = time.ok_or_else(|| {
        QueryError::parameter(name, &format!("cannot parse \"{text}\" to a valid timestamp"))
    })?;
    Ok(Some(time))
}

/// Parses a duration in seconds or with units, such as `1h30m`.
fn duration(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|character: char| character.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let (_, length) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * length;
        rest = after;
    }
    Some(seconds).filter(|_| !text.is_empty())
}

/// The range of a range query.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: f64,
    step: f64,
    steps: u32,
}

impl Range {
    fn from_query(query: &Query) -> Result<Self, QueryError> {
        let required = |name: &str| {
            let missing = || QueryError::parameter(name, "cannot parse \"\" to a valid timestamp");
            moment(query, name)?.ok_or_else(missing)
        };
        let (start, end) = (required("start")?, required("end")?);
        if end < start {
            return Err(QueryError::parameter("end", "end timestamp must not be before start time"));
        }
        let step = query.get("step").and_then(duration);
        let step =
            step.ok_or_else(|| QueryError::parameter("step", "cannot parse it to a valid duration"))?;
        if step <= 0.0 {
            let why =
                "zero or negative query resolution step widths are not accepted. Try a positive integer";
            return Err(QueryError::parameter("step", why));
        }
        let steps = ((end - start) / step).floor();
        if steps > MAX_POINTS {
            let why = "exceeded maximum resolution of 11,000 points per timeseries. \
                Try decreasing the query resolution (?step=XX)";
            return Err(QueryError::bad_data(why));
        }
        Ok(Self { start, step, steps: steps as u32 })
    }

    fn times(self) -> impl Iterator<Item = f64> {
        (0..=self.steps).map(move |index| self.start + f64::from(index) * self.step)
    }
}

/// The maximum number of points per series, as in Prometheus.
const MAX_POINTS: f64 = 11_000.0;

/// The maximum of a time in seconds: a float is exact to the millisecond up to it.
const FARTHEST: f64 = 1e12;

const UNITS: [(&str, f64); 7] = [
    ("ms", 0.001),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("w", 604_800.0),
    ("y", 31_536_000.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_or_units() {
        for (text, seconds) in
            [("15", 15.0), ("0.5", 0.5), ("1h30m", 5400.0), ("100ms", 0.1), ("1d", 86_400.0)]
        {
            assert_eq!(duration(text), Some(seconds), "{text}");
        }
        for wrong in ["", "x", "inf", "1x", "m", "1h5"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ranges_have_bounds() {
        let points = |query: &str| Range::from_query(&Query::parse(query)).map(|range| range.times().count());
        assert_eq!(points("start=0&end=60&step=15s").expect("a range"), 5);
        for wrong in [
            "start=0&end=60",
            "start=60&end=0&step=1",
            "start=0&end=60&step=0",
            "start=0&end=1e9&step=1",
            "start=nan&end=inf&step=1",
            "start=0&end=1&step=1e-300",
        ] {
            assert!(points(wrong).is_err(), "{wrong}");
        }
    }
}
