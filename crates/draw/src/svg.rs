//! SVG as text. Every value passes through [`escape`] here, so that nothing out of a log can become markup.

use kpat_text::clean;
use std::fmt::{self, Display, Write as _};

/// All pictures are so wide.
pub const WIDTH: f64 = 960.0;

/// As text of XML.
pub fn escape(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in clean(raw).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A whole document around a drawing.
pub fn document(drawing: &str) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{drawing}")
}

/// A place or a length, with so many decimals.
#[derive(Clone, Copy)]
pub struct Px(pub f64, pub usize);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*}", self.1, self.0)
    }
}

/// Elements, one after the other.
#[derive(Default)]
pub struct Sheet {
    body: String,
}

impl Sheet {
    pub fn element(&mut self, name: &'static str) -> Element<'_> {
        self.body.push('<');
        self.body.push_str(name);
        Element { body: &mut self.body, name }
    }

    pub fn text(&mut self, x: Px, y: Px, class: &str, words: &str) {
        self.element("text").at(x, y).set("class", class).words(words);
    }

    /// Up to `x`.
    pub fn text_before(&mut self, x: Px, y: Px, class: &str, words: &str) {
        self.element("text").at(x, y).set("class", class).set("text-anchor", "end").words(words);
    }

    /// A drawing within a line of a page, beside what it shows.
    pub fn small(&self, width: u32, height: u32) -> String {
        format!("<svg width=\"{width}\" height=\"{height}\" aria-hidden=\"true\">{}</svg>", self.body)
    }

    /// Elements that belong together are a line of the file.
    pub fn end_line(&mut self) {
        self.body.push('\n');
    }
}

/// An element whose attributes are being set; ended by one of the functions that return nothing.
#[must_use]
pub struct Element<'a> {
    body: &'a mut String,
    name: &'static str,
}

impl Element<'_> {
    pub fn set(self, name: &str, value: impl Display) -> Self {
        let _ = write!(self.body, " {name}=\"{}\"", escape(&value.to_string()));
        self
    }

    pub fn at(self, x: Px, y: Px) -> Self {
        self.set("x", x).set("y", y)
    }

    pub fn size(self, width: Px, height: Px) -> Self {
        self.set("width", width).set("height", height)
    }

    pub fn end(self) {
        self.body.push_str("/>");
    }

    fn open(self) {
        self.body.push_str(">\n");
    }

    pub fn words(self, words: &str) {
        let _ = write!(self.body, ">{}</{}>", escape(words), self.name);
    }

    /// `title`: shown when the pointer is on it, and read out.
    pub fn titled(self, words: &str, title: &str) {
        let (words, title) = (escape(words), escape(title));
        let _ = write!(self.body, ">{words}<title>{title}</title></{}>", self.name);
    }
}

/// What a whole drawing is called.
pub enum Name<'a> {
    /// To a screen reader.
    Label(&'a str),
    /// Also where the pointer is on it.
    Title(&'a str),
}

/// The outermost element of a drawing.
pub struct Frame<'a> {
    pub class: &'static str,
    pub name: Name<'a>,
    pub height: f64,
    /// Empty: the page around it brings the style.
    pub style: &'a [&'a str],
    pub hatch: Option<Hatch<'a>>,
}

impl Frame<'_> {
    pub fn around(&self, sheet: &Sheet) -> String {
        let mut out = Sheet::default();
        let frame = out
            .element("svg")
            .set("class", self.class)
            .set("xmlns", "http://www.w3.org/2000/svg")
            .set("viewBox", format_args!("0 0 {WIDTH} {:.0}", self.height))
            .set("width", "100%")
            .set("role", "img");
        match self.name {
            Name::Label(label) => frame.set("aria-label", label).open(),
            Name::Title(title) => {
                frame.set("aria-labelledby", "t").open();
                out.element("title").set("id", "t").words(title);
                out.end_line();
            }
        }
        if !self.style.is_empty() {
            let _ = writeln!(out.body, "<style>{}</style>", self.style.concat());
        }
        if let Some(hatch) = &self.hatch {
            hatch.define(&mut out);
        }
        out.body + &sheet.body + "</svg>\n"
    }
}

/// Slanting lines to fill with, as `url(#id)`.
pub struct Hatch<'a> {
    pub id: &'a str,
    /// What is in each square of six by six.
    pub square: fn(&mut Sheet),
}

impl Hatch<'_> {
    fn define(&self, out: &mut Sheet) {
        out.body.push_str("<defs>");
        let pattern = out.element("pattern").set("id", self.id).set("width", 6).set("height", 6);
        let pattern = pattern.set("patternUnits", "userSpaceOnUse").set("patternTransform", "rotate(45)");
        pattern.body.push('>');
        (self.square)(out);
        out.body.push_str("</pattern></defs>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_becomes_markup() {
        let mut sheet = Sheet::default();
        let hostile = "a\"><script>'&\u{1b}\u{202e}\n";
        sheet.text(Px(1.0, 1), Px(2.0, 0), hostile, hostile);
        sheet.element("rect").set("style", hostile).titled("", hostile);
        let safe = "a&quot;&gt;&lt;script&gt;&#39;&amp;\\x1b\\x202e ";
        let rect = format!("<rect style=\"{safe}\"><title>{safe}</title></rect>");
        assert_eq!(sheet.body, format!("<text x=\"1.0\" y=\"2\" class=\"{safe}\">{safe}</text>{rect}"));
    }
}
