//! The messages of an event file, as far as scalars, histograms and text need them. Field names and numbers are those
//! of TensorFlow's `event.proto`, `summary.proto` and `tensor.proto`.

use prost::{Enumeration, Message, Oneof};

/// An event of a step.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// The time of the event, in seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// The step, or the number of samples.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// The content of the event.
    #[prost(oneof = "What", tags = "3, 5")]
    pub what: Option<What>,
}

/// The content of an event.
#[derive(Clone, PartialEq, Oneof)]
pub enum What {
    /// In the first event of a file: the version of the format.
    #[prost(string, tag = "3")]
    FileVersion(String),
    /// Values of a step.
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// Values of a step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// The values, each with its tag.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// A value.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The tag of the value.
    #[prost(string, tag = "1")]
    pub tag: String,
    /// The TensorBoard plugin that shows the value, unless its kind determines that.
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Metadata>,
    /// The value itself.
    #[prost(oneof = "Content", tags = "2, 5, 8")]
    pub content: Option<Content>,
}

/// The value, of one of these kinds.
#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    /// A number.
    #[prost(float, tag = "2")]
    Scalar(f32),
    /// A distribution.
    #[prost(message, tag = "5")]
    Histogram(Histogram),
    /// Text, as a tensor of strings.
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

/// A distribution by buckets.
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    /// The smallest sample.
    #[prost(double, tag = "1")]
    pub min: f64,
    /// The largest sample.
    #[prost(double, tag = "2")]
    pub max: f64,
    /// Number of samples.
    #[prost(double, tag = "3")]
    pub num: f64,
    /// The sum of the samples.
    #[prost(double, tag = "4")]
    pub sum: f64,
    /// The sum of their squares.
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    /// The upper limit of each bucket.
    #[prost(double, repeated, tag = "6")]
    pub bucket_limits: Vec<f64>,
    /// The number of samples in each bucket.
    #[prost(double, repeated, tag = "7")]
    pub buckets: Vec<f64>,
}

/// A tensor of strings.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    /// The type of the elements.
    #[prost(enumeration = "DataType", tag = "1")]
    pub data_type: i32,
    /// The shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
    /// The elements.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub strings: Vec<Vec<u8>>,
}

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum DataType {
    /// None.
    Invalid = 0,
    /// Strings.
    String = 7,
}

/// The shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    /// The dimensions.
    #[prost(message, repeated, tag = "2")]
    pub dimensions: Vec<Dimension>,
}

/// A dimension of a tensor.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Dimension {
    /// The size of the dimension.
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// How TensorBoard treats a value.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// The plugin that shows the value.
    #[prost(message, optional, tag = "1")]
    pub plugin: Option<Plugin>,
}

/// A plugin of TensorBoard.
#[derive(Clone, PartialEq, Message)]
pub struct Plugin {
    /// The name of the plugin.
    #[prost(string, tag = "1")]
    pub name: String,
}

impl Event {
    /// The values of `step`.
    pub fn values(wall_time: f64, step: u64, values: Vec<Value>) -> Self {
        Self { wall_time, step: step as i64, what: Some(What::Summary(Summary { values })) }
    }
}

impl Value {
    /// A number.
    pub fn scalar(tag: impl Into<String>, number: f64) -> Self {
        Self { tag: tag.into(), metadata: None, content: Some(Content::Scalar(number as f32)) }
    }

    /// A histogram of how often each of the numbers 0, 1, ... occurs.
    pub fn counts(tag: impl Into<String>, counts: &[u32]) -> Self {
        let buckets: Vec<f64> = counts.iter().map(|count| f64::from(*count)).collect();
        let moment = |power: i32| {
            let terms = buckets.iter().enumerate().map(|(number, count)| (number as f64).powi(power) * count);
            terms.sum()
        };
        let of_any = |at: Option<usize>| at.unwrap_or(0) as f64;
        let histogram = Histogram {
            min: of_any(counts.iter().position(|count| *count > 0)),
            max: of_any(counts.iter().rposition(|count| *count > 0)),
            num: moment(0),
            sum: moment(1),
            sum_squares: moment(2),
            bucket_limits: (0..counts.len()).map(|number| number as f64 + 0.5).collect(),
            buckets,
        };
        Self { tag: tag.into(), metadata: None, content: Some(Content::Histogram(histogram)) }
    }

    /// A text in Markdown.
    pub fn text(tag: impl Into<String>, markdown: &str) -> Self {
        let tensor = Tensor {
            data_type: DataType::String.into(),
            shape: Some(Shape { dimensions: vec![Dimension { size: 1 }] }),
            strings: vec![markdown.as_bytes().to_vec()],
        };
        let plugin = Plugin { name: "text".into() };
        Self {
            tag: tag.into(),
            metadata: Some(Metadata { plugin: Some(plugin) }),
            content: Some(Content::Tensor(tensor)),
        }
    }
}
