//! The report as one HTML page that needs nothing else: the page is a template with the report in
//! it as JSON, and a few lines of script that group and filter the mismatches.

use crate::report::Report;

const TEMPLATE: &str = include_str!("report.html");
const PLACE: &str = "{{report}}";

impl Report {
    pub fn to_html(&self) -> String {
        let json = serde_json::to_string(self).expect("a report holds nothing that JSON has not");
        // Text of a document must not end the script that it is in.
        let json = json.replace('<', "\\u003c");
        TEMPLATE.replacen(PLACE, &json, 1)
    }
}
