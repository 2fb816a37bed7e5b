//! The SVG plot of one report: latency by percentile, and responses by second.

use std::fmt::Write as _;

use super::{Report, report::number};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;

/// One set of axes.
struct Panel {
    top: f64,
    x: (f64, f64),
    y: (f64, f64),
}

/// Returns the SVG document.
pub fn svg(report: &Report) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        WIDTH + LEFT + 30.0,
        2.0 * (HEIGHT + TOP) + 60.0
    );
    let title = format!("{} {}", report.command, report.target);
    text(&mut out, LEFT, 20.0, "start", &title);
    latency(&mut out, report);
    throughput(&mut out, report);
    out.push_str("</svg>\n");
    out
}

/// Logarithmic in the share of slower requests, so that the tail is readable.
fn latency(out: &mut String, report: &Report) {
    let points: Vec<_> = report
        .quantiles
        .iter()
        .map(|(quantile, ms)| (-(1.0 - quantile).log10(), ms.max(1e-3).log10()))
        .collect();
    let lowest = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min).floor();
    let highest = points.iter().map(|point| point.1).fold(lowest + 1.0, f64::max).ceil();
    let panel = Panel { top: TOP, x: (0.0, 5.0), y: (lowest, highest) };
    panel.frame(out, "latency in ms, by percentile");
    for (nines, label) in [(0.301, "50 %"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %")] {
        text(out, panel.px(nines), panel.top + HEIGHT + 16.0, "middle", label);
    }
    for power in (lowest as i32)..=(highest as i32) {
        panel.level(out, f64::from(power), &number(10f64.powi(power)));
    }
    panel.line(out, &points, "#1f77b4");
}

fn throughput(out: &mut String, report: &Report) {
    let points: Vec<_> =
        report.timeline.iter().enumerate().map(|(at, second)| (at as f64, second.answers as f64)).collect();
    let failures: Vec<_> =
        report.timeline.iter().enumerate().map(|(at, second)| (at as f64, second.failures as f64)).collect();
    let most = points.iter().chain(&failures).map(|point| point.1).fold(1.0, f64::max);
    let panel = Panel {
        top: 2.0 * TOP + HEIGHT + 20.0,
        x: (0.0, (points.len().saturating_sub(1)).max(1) as f64),
        y: (0.0, most * 1.05),
    };
    panel.frame(out, "answers in each second (blue), failures (red)");
    for share in [0.0, 0.5, 1.0] {
        panel.level(out, most * share, &number(most * share));
        let at = panel.x.1 * share;
        text(out, panel.px(at), panel.top + HEIGHT + 16.0, "middle", &format!("{} s", number(at)));
    }
    panel.line(out, &points, "#1f77b4");
    panel.line(out, &failures, "#d62728");
}

impl Panel {
    fn px(&self, x: f64) -> f64 {
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * WIDTH
    }

    fn py(&self, y: f64) -> f64 {
        self.top + HEIGHT - (y - self.y.0) / (self.y.1 - self.y.0) * HEIGHT
    }

    fn frame(&self, out: &mut String, title: &str) {
        text(out, LEFT, self.top - 6.0, "start", title);
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>",
            self.top
        );
    }

    fn level(&self, out: &mut String, y: f64, label: &str) {
        let at = self.py(y);
        let right = LEFT + WIDTH;
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>");
        text(out, LEFT - 6.0, at + 4.0, "end", label);
    }

    fn line(&self, out: &mut String, points: &[(f64, f64)], colour: &str) {
        let points: Vec<_> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", self.px(*x), self.py(*y))).collect();
        let points = points.join(" ");
        let _ = writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>");
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::load::{Plan, Tally};

    #[test]
    fn plot_of_empty_run_has_finite_numbers() {
        let start = Instant::now();
        let mut tally = Tally::new(start, start + Duration::from_secs(3));
        for filled in [false, true] {
            if filled {
                tally.answered(start, start + Duration::from_millis(1500), 200, true);
            }
            let plan = Plan::default();
            let picture = svg(&Report::new("http", "http://a/?x=<1>&y", &plan, &tally, None));
            assert!(picture.contains("&lt;1&gt;&amp;y") && picture.ends_with("</svg>\n"));
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }
}
