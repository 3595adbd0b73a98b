//! Tables of text: aligned for a terminal, or as Markdown.

/// A table whose first `left_columns` columns are text; the others hold figures.
#[derive(Debug)]
pub struct Table {
    left_columns: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(left_columns: usize, header: &[&str]) -> Table {
        Table {
            left_columns,
            rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()],
        }
    }

    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(
            row.len(),
            self.rows[0].len(),
            "a row has a cell for each column"
        );
        self.rows.push(row);
    }

    fn widths(&self) -> Vec<usize> {
        let columns = 0..self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
        };
        columns.map(|column| width(column).unwrap_or(0)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize], separator: &str) -> String {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if column < self.left_columns {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        cells.join(separator)
    }

    pub fn text(&self) -> String {
        let widths = self.widths();
        let mut lines: Vec<String> = self
            .rows
            .iter()
            .map(|row| self.line(row, &widths, "  ").trim_end().to_owned())
            .collect();
        let rule = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
        lines.insert(1, "─".repeat(rule));
        lines.join("\n") + "\n"
    }

    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let mut lines: Vec<String> = self
            .rows
            .iter()
            .map(|row| format!("| {} |", self.line(row, &widths, " | ")))
            .collect();
        let rules: Vec<&str> = (0..widths.len())
            .map(|column| {
                if column < self.left_columns {
                    "---"
                } else {
                    "---:"
                }
            })
            .collect();
        lines.insert(1, format!("| {} |", rules.join(" | ")));
        lines.join("\n") + "\n"
    }
}

/// A figure with three significant digits, and separators in its thousands.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value >= 100.0 {
        return thousands(value.round() as u64);
    }
    let decimals = if value >= 10.0 { 1 } else { 2 };
    format!("{value:.decimals$}")
}

fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in microseconds, in the unit that suits it.
pub fn time(micros: f64) -> String {
    if micros >= 1_000_000.0 {
        format!("{} s", number(micros / 1_000_000.0))
    } else if micros >= 1_000.0 {
        format!("{} ms", number(micros / 1_000.0))
    } else {
        format!("{micros:.0} µs")
    }
}

pub fn megabytes(bytes: u64) -> String {
    format!("{} MB", number(bytes as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let table = [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (45.67, "45.7"),
            (123.4, "123"),
            (9_999.6, "10,000"),
            (1_234_567.0, "1,234,567"),
            (f64::NAN, "-"),
        ];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
        assert_eq!(time(950.4), "950 µs");
        assert_eq!(time(1_500.0), "1.50 ms");
        assert_eq!(time(2_000_000.0), "2.00 s");
        assert_eq!(megabytes(123_456_789), "123 MB");
    }

    #[test]
    fn tables_align_text_left_and_figures_right() {
        let mut table = Table::new(1, &["name", "µs"]);
        table.push(vec!["a".into(), "1".into()]);
        table.push(vec!["longer".into(), "1,000".into()]);
        assert_eq!(
            table.text(),
            "name       µs\n─────────────\na           1\nlonger  1,000\n"
        );
        assert_eq!(
            table.markdown(),
            "| name   |    µs |\n| --- | ---: |\n| a      |     1 |\n| longer | 1,000 |\n"
        );
    }
}
