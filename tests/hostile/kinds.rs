//! The kinds of files: sound ones, and what reads them.
#![allow(non_upper_case_globals)] // their names are those of the tests

use super::Kind;
use gristmill::data::tokenize::{TokenFormat, TokenizeConfig, tokenize, train_tokenizer};
use gristmill::data::tokenizer::Tokenizer;
use gristmill::data::{ChatForm, Codec, DocumentFormat, EvalData};
use gristmill::durable::PathOrigin;
use gristmill::element::Element;
use gristmill::error::{Error, Result};
use gristmill::infer::OpenedModel;
use gristmill::kernels::{Capabilities, Condition, Kernel, Sources};
use gristmill::perf::profile::Profile;
use gristmill::report::page::{RunFiles, page};
use gristmill::report::tensorboard::{Scalars, TensorBoard};
use gristmill::settings::RunConfig;
use gristmill::store::checkpoint_folder::{Best, CheckpointFolder, Keep};
use gristmill::store::export::export;
use gristmill::store::merge::merge;
use gristmill::store::npy;
use gristmill::store::tensor_file::{TensorFile, TensorInfo};
use gristmill::store::trainer_state::{FORMAT_VERSION, TrainerState};
use gristmill::train::pretrained::check_weights;
use safetensors::Dtype;
use std::path::{Path, PathBuf};

const SAMPLES: &str = "tests/data/samples";
const TEXT: &str = "tests/data/mill.txt";

fn copy(from: &str, folder: &Path, name: &str) {
    std::fs::copy(from, folder.join(name)).unwrap_or_else(|error| panic!("{from}: {error}"));
}

/// Loads the data of `loader` in `folder`, and takes the first batches.
fn load(folder: &Path, loader: &str, others: &str) -> Result<()> {
    load_rows(folder, loader, others, 64)
}

/// The same in rows of `seq_length` tokens.
fn load_rows(folder: &Path, loader: &str, others: &str, seq_length: usize) -> Result<()> {
    let folder = folder.display();
    let loader = loader.replace("FOLDER", &folder.to_string());
    let others = others.replace("FOLDER", &folder.to_string());
    let text = format!(
        "
model: {{ model_config: {{ type: LlamaConfig, hidden_size: 32, num_layers: 1, num_heads: 1, vocab_size: 100000, seq_length: {seq_length} }} }}
runner_config: {{ epochs: 1, batch_size: 1 }}
optimizer: {{ type: AdamW }}
lr_schedule: {{ type: ConstantWarmUpLR, learning_rate: 1.e-3 }}
train_dataset: {{ data_loader: {{ {loader} }}, {others} }}
"
    );
    let data = RunConfig::parse(&text, Path::new("hostile.yaml"), &[])?.plan.load_data()?;
    (0..data.train.steps_per_epoch().min(4)).try_for_each(|step| data.train.batch(step).map(drop))
}

/// Special tokens, and no template.
const SPECIAL: &str = r#"{"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"}"#;

const TOKENIZER: &str = "tokenizer: {tokenizer_file: FOLDER/tokenizer.json, eos_token: </s>}";

pub static shader: Kind = Kind {
    name: "shader",
    targets: &["every_condition.wgsl"],
    prepare: |folder| {
        copy("tests/without_adapter/own_shaders/every_condition.wgsl", folder, "every_condition.wgsl");
    },
    read: |folder| {
        let bytes = std::fs::read(folder.join("every_condition.wgsl")).expect("a file");
        let sources = Sources::default().with("mine/file", String::from_utf8_lossy(&bytes).into_owned())?;
        let kernel = Kernel::new("mine/file", "main", Element::F32).condition(Condition::Causal, true);
        sources.compose(&kernel).map(drop)
    },
};

pub static configuration: Kind = Kind {
    name: "configuration",
    targets: &["tiny_moe.yaml", "gpt2.yaml", "deepseek3.yaml"],
    prepare: |folder| {
        copy("configs/tiny_moe.yaml", folder, "tiny_moe.yaml");
        copy("tests/data/dialect/gpt2.yaml", folder, "gpt2.yaml");
        copy("tests/data/dialect/deepseek3.yaml", folder, "deepseek3.yaml");
    },
    read: |folder| {
        ["tiny_moe.yaml", "gpt2.yaml", "deepseek3.yaml"].iter().try_for_each(|name| {
            let config = RunConfig::outline(&folder.join(name), &[], None)?;
            config.plan.to_yaml();
            Ok(())
        })
    },
};

pub static tokenizer: Kind = Kind {
    name: "tokenizer",
    targets: &["tokenizer.json", "trained.json"],
    prepare: |folder| {
        copy(&format!("{SAMPLES}/tokenizer.json"), folder, "tokenizer.json");
        let trained = train_tokenizer(&[TEXT.to_string()], &folder.join("trained.json"), 300, 2, false);
        trained.unwrap_or_else(|error| panic!("{error}"));
    },
    read: |folder| {
        let text = std::fs::read_to_string(TEXT).expect("a text");
        for name in ["tokenizer.json", "trained.json"] {
            let loaded = Tokenizer::load(&folder.join(name))?;
            let ids = loaded.encode(&text)?;
            loaded.encode_all(&["the mill".to_string(), text.clone(), String::new()])?;
            loaded.decode(&ids);
            loaded.decode(&[0, 511, u32::MAX]);
        }
        load(folder, "type: TextDataLoader, dataset_files: tests/data/mill.txt", TOKENIZER)
    },
};

fn prepare_chat(folder: &Path) {
    let chat = std::fs::read_to_string(format!("{SAMPLES}/chat/conversations.jsonl")).expect("conversations");
    std::fs::write(folder.join("chat.jsonl"), &chat).expect("a file");
    // Not every template writes all of them: the first one is plain.
    std::fs::write(folder.join("first.jsonl"), chat.lines().next().expect("a conversation")).expect("a file");
    copy(&format!("{SAMPLES}/tokenizer.json"), folder, "tokenizer.json");
    std::fs::write(folder.join("tokenizer_config.json"), SPECIAL).expect("a file");
    for name in ["generation", "llama3", "mistral", "chatglm", "qwen2"] {
        copy(&format!("{SAMPLES}/chat/{name}.jinja"), folder, &format!("{name}.jinja"));
    }
    copy(&format!("{SAMPLES}/chat/generation.jinja"), folder, "template.jinja");
}

pub static chat_template: Kind = Kind {
    name: "chat_template",
    targets: &["generation.jinja", "llama3.jinja", "mistral.jinja", "chatglm.jinja", "qwen2.jinja"],
    prepare: prepare_chat,
    read: |folder| {
        let names = ["generation", "llama3", "mistral", "chatglm", "qwen2"];
        let bytes =
            |folder: &Path, name: &str| std::fs::read(folder.join(format!("{name}.jinja"))).expect("a file");
        let sound = Path::new(SAMPLES).join("chat");
        let is_damaged = |name: &&str| bytes(folder, name) != bytes(&sound, name);
        // One at a time is damaged; the others need not be read again.
        let any = names.iter().any(is_damaged);
        names.iter().filter(|name| !any || is_damaged(name)).try_for_each(|name| {
            let files = format!(
                "type: SFTDataLoader, dataset_files: FOLDER/first.jsonl, chat_template: FOLDER/{name}.jinja"
            );
            load_rows(folder, &files, TOKENIZER, 512)
        })
    },
};

pub static tokenizer_config: Kind = Kind {
    name: "tokenizer_config",
    targets: &["tokenizer_config.json"],
    prepare: |folder| {
        prepare_chat(folder);
        let template = std::fs::read_to_string(folder.join("template.jinja")).expect("a template");
        let config = serde_json::json!({
            "bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>",
            "chat_template": [{"name": "default", "template": template}, {"name": "tools", "template": "{{ tools }}"}],
        });
        std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("a file");
    },
    read: |folder| load_rows(folder, "type: SFTDataLoader, dataset_files: FOLDER/chat.jsonl", TOKENIZER, 512),
};

pub static conversations: Kind = Kind {
    name: "conversations",
    targets: &["chat.jsonl"],
    prepare: prepare_chat,
    read: |folder| {
        let files =
            "type: SFTDataLoader, dataset_files: FOLDER/chat.jsonl, chat_template: FOLDER/template.jinja";
        load_rows(folder, files, TOKENIZER, 512)
    },
};

pub static prompts: Kind = Kind {
    name: "prompts",
    targets: &["adgen.jsonl", "alpaca.json"],
    prepare: |folder| {
        copy(&format!("{SAMPLES}/adgen.jsonl"), folder, "adgen.jsonl");
        copy(&format!("{SAMPLES}/alpaca.json"), folder, "alpaca.json");
    },
    read: |folder| {
        load(folder, "type: ADGenDataLoader, dataset_dir: FOLDER/adgen.jsonl, version: 3", "")?;
        let alpaca = "type: HFDataLoader, path: json, data_files: FOLDER/alpaca.json, \
                      handler: [{type: AlpacaInstructDataHandler}, {type: PackingHandler, pack_strategy: truncate}]";
        load(folder, alpaca, "")
    },
};

/// Questions with answers, a file for each form that `eval` knows.
pub static questions: Kind = Kind {
    name: "questions",
    targets: &["hellaswag.jsonl", "arc.jsonl", "mmlu.json"],
    prepare: |folder| {
        let swag = serde_json::json!({
            "activity_label": "Roof", "ctx_a": "A man [substeps] is on a roof.", "ctx_b": "he starts", "ctx": "A man",
            "endings": ["to sing [title] loudly", "falling"], "label": "1",
        });
        let arc = serde_json::json!({
            "question": "Which?", "choices": {"text": ["this", "that"], "label": ["A", "B"]}, "answerKey": "B",
        });
        let mmlu = serde_json::json!({"question": "Which?", "subject": "abstract_algebra", "choices": ["0", "1"], "answer": 0});
        std::fs::write(folder.join("hellaswag.jsonl"), format!("{swag}\n{swag}\n")).expect("a file");
        std::fs::write(folder.join("arc.jsonl"), format!("{arc}\n{arc}\n")).expect("a file");
        std::fs::write(folder.join("mmlu.json"), format!("[{mmlu}, {mmlu}]")).expect("a file");
    },
    read: |folder| {
        ["hellaswag.jsonl", "arc.jsonl", "mmlu.json"].iter().try_for_each(|name| {
            EvalData::load(&folder.join(name), &Codec::Bytes { eod: 0 }, 64, None, &ChatForm::default())
                .map(drop)
        })
    },
};

pub static json_text: Kind = Kind {
    name: "json_text",
    targets: &["text.jsonl"],
    prepare: |folder| {
        let text = std::fs::read_to_string(TEXT).expect("a text");
        let lines = text.lines().map(|line| serde_json::json!({"text": line, "id": 7}).to_string() + "\n");
        std::fs::write(folder.join("text.jsonl"), lines.collect::<String>()).expect("a file");
    },
    read: |folder| load(folder, "type: JsonlDataLoader, dataset_files: FOLDER/text.jsonl", ""),
};

const PARQUET: &str = "type: HFDataLoader, path: parquet, data_files: FOLDER/rows.parquet";

pub static parquet_plain: Kind = Kind {
    name: "parquet_plain",
    targets: &["rows.parquet"],
    prepare: |folder| copy(&format!("{SAMPLES}/none.parquet"), folder, "rows.parquet"),
    read: |folder| load(folder, PARQUET, ""),
};

pub static parquet_snappy: Kind = Kind {
    name: "parquet_snappy",
    targets: &["rows.parquet"],
    prepare: |folder| copy(&format!("{SAMPLES}/snappy.parquet"), folder, "rows.parquet"),
    read: |folder| load(folder, PARQUET, ""),
};

/// Writes the small text as tokens of 16 bits.
fn write_tokens(folder: &Path, name: &str, format: TokenFormat) {
    let written = tokenize(
        &TokenizeConfig {
            inputs: vec![TEXT.to_string()],
            documents: DocumentFormat::Line,
            codec: Codec::Bytes { eod: 0 },
            output: folder.join(name),
            format,
            force: false,
        },
        |_, _| {},
    );
    written.unwrap_or_else(|error| panic!("{error}"));
}

pub static token_files: Kind = Kind {
    name: "token_files",
    targets: &["llm.bin", "plain.bin"],
    prepare: |folder| {
        write_tokens(folder, "llm.bin", TokenFormat::LlmC);
        write_tokens(folder, "plain.bin", TokenFormat::Plain);
    },
    read: |folder| {
        load(folder, "type: TokenDataLoader, dataset_files: FOLDER/llm.bin", "")?;
        load(folder, "type: TokenDataLoader, dataset_files: FOLDER/plain.bin", "")
    },
};

pub static megatron: Kind = Kind {
    name: "megatron",
    targets: &["text.idx", "text.idx", "text.bin"],
    prepare: |folder| write_tokens(folder, "text", TokenFormat::Megatron),
    read: |folder| {
        let loader = "type: BlendedMegatronDatasetDataLoader, sizes: [20, 2, 0], \
                      config: {data_path: FOLDER/text, split: '0.8, 0.2, 0', eod: 0, reset_position_ids: True}";
        load(folder, loader, "")
    },
};

pub static mindrecord: Kind = Kind {
    name: "mindrecord",
    targets: &["columns.mindrecord", "shards.mindrecord0", "shards.mindrecord1"],
    prepare: |folder| {
        for name in ["columns.mindrecord", "shards.mindrecord0", "shards.mindrecord1"] {
            copy(&format!("tests/data/mindrecord/{name}"), folder, name);
        }
    },
    read: |folder| {
        let of = |name: &str| {
            let loader = format!("type: MindDataset, dataset_files: FOLDER/{name}");
            load_rows(folder, &loader, "input_columns: [input_ids]", 16)
        };
        of("columns.mindrecord")?;
        of("shards.mindrecord0")
    },
};

fn write_tensors(path: &Path, tensors: &[(&str, &[usize])]) {
    let infos: Vec<TensorInfo> = tensors
        .iter()
        .map(|(name, shape)| TensorInfo { name: name.to_string(), dtype: Dtype::F32, shape: shape.to_vec() })
        .collect();
    let metadata = [("format".to_string(), "pt".to_string())].into();
    let written = TensorFile::write(path, &infos, metadata, |index, sink| {
        let count = infos[index].shape.iter().product::<usize>();
        (0..count).try_for_each(|number| sink.put(&(number as f32 / 7.0).to_le_bytes()))
    });
    written.unwrap_or_else(|error| panic!("{error}"));
}

const Q: &str = "model.layers.0.self_attn.q_proj.weight";
const NORM: &str = "model.norm.weight";

fn prepare_adapter(folder: &Path) {
    let adapter = folder.join("adapter");
    std::fs::create_dir_all(&adapter).expect("a folder");
    let prefix = "base_model.model.model.layers.0.self_attn.q_proj";
    let [a, b] = ["A", "B"].map(|factor| format!("{prefix}.lora_{factor}.weight"));
    write_tensors(&adapter.join("adapter_model.safetensors"), &[(&a, &[2, 8]), (&b, &[8, 2])]);
    let config = serde_json::json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "use_rslora": false, "bias": "none",
        "fan_in_fan_out": false, "base_model_name_or_path": "base", "task_type": "CAUSAL_LM",
    });
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).expect("a file");
}

/// Merges the adapter of `folder` into its model, which reads every tensor.
fn merged(folder: &Path) -> Result<()> {
    let out = folder.join("merged");
    let done = merge(&folder.join("base"), &folder.join("adapter"), &out).map(drop);
    let _ = std::fs::remove_dir_all(out);
    done
}

pub static safetensors: Kind = Kind {
    name: "safetensors",
    targets: &["base/model.safetensors"],
    prepare: |folder| {
        prepare_adapter(folder);
        std::fs::create_dir_all(folder.join("base")).expect("a folder");
        write_tensors(&folder.join("base/model.safetensors"), &[(Q, &[8, 8]), (NORM, &[8])]);
    },
    read: merged,
};

pub static weight_index: Kind = Kind {
    name: "weight_index",
    targets: &["base/model.safetensors.index.json"],
    prepare: |folder| {
        prepare_adapter(folder);
        std::fs::create_dir_all(folder.join("base")).expect("a folder");
        let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        write_tensors(&folder.join("base").join(names[0]), &[(Q, &[8, 8])]);
        write_tensors(&folder.join("base").join(names[1]), &[(NORM, &[8])]);
        let index =
            serde_json::json!({"metadata": {"total_size": 288}, "weight_map": {Q: names[0], NORM: names[1]}});
        std::fs::write(folder.join("base/model.safetensors.index.json"), index.to_string()).expect("a file");
    },
    read: merged,
};

pub static adapters: Kind = Kind {
    name: "adapters",
    targets: &["adapter/adapter_config.json", "adapter/adapter_model.safetensors"],
    prepare: safetensors.prepare,
    read: merged,
};

/// The note of the base that an adapter was trained on.
pub static base_note: Kind = Kind {
    name: "base_note",
    targets: &["adapter/base.json"],
    prepare: |folder| {
        (safetensors.prepare)(folder);
        let note = |hash: &str| {
            let note = serde_json::json!({"path": folder.join("base"), "hash": hash}).to_string();
            std::fs::write(folder.join("adapter/base.json"), note).expect("a file");
        };
        note("0000000000000000");
        // The refusal says what the hash is.
        let refusal = merged(folder).expect_err("another base").to_string();
        let (_, hash) = refusal.split_once("the hash of its tensors is ").expect("a hash");
        note(&hash[..16]);
    },
    read: merged,
};

/// Weights under the names of InternLM2, which have q, k and v in one tensor.
pub static published_names: Kind = Kind {
    name: "published_names",
    targets: &["base/config.json", "base/model.safetensors"],
    prepare: |folder| {
        prepare_adapter(folder);
        std::fs::create_dir_all(folder.join("base")).expect("a folder");
        let together = "model.layers.0.attention.wqkv.weight";
        write_tensors(&folder.join("base/model.safetensors"), &[(together, &[16, 8]), (NORM, &[8])]);
        let config = serde_json::json!({
            "model_type": "internlm2", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        });
        std::fs::write(folder.join("base/config.json"), config.to_string()).expect("a file");
    },
    read: merged,
};

pub static generation_config: Kind = Kind {
    name: "generation_config",
    targets: &["generation_config.json"],
    prepare: |folder| {
        (config_json.prepare)(folder);
        let config = serde_json::json!({
            "bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
            "repetition_penalty": 1.05, "max_new_tokens": 512, "transformers_version": "4.57.0",
        });
        std::fs::write(folder.join("generation_config.json"), config.to_string()).expect("a file");
    },
    read: |folder| OpenedModel::open(folder, &[]).map(|run| drop(run.stops())),
};

pub static config_json: Kind = Kind {
    name: "config_json",
    targets: &["config.json"],
    prepare: |folder| {
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 256, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false,
            "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": [2, 3], "dtype": "bfloat16",
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        });
        std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
        write_tensors(&folder.join("model.safetensors"), &[(NORM, &[32])]);
    },
    read: |folder| {
        let text = "
model:
  model_config:
    type: LlamaConfig
    hidden_size: 32
    num_layers: 2
    num_heads: 4
    n_kv_heads: 2
    intermediate_size: 64
    vocab_size: 256
    seq_length: 256
    theta: 500000.0
    extend_method: LLAMA3
    scaling_factor: {factor: 4.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 64}
runner_config: {epochs: 1, batch_size: 1}
optimizer: {type: AdamW}
lr_schedule: {type: ConstantWarmUpLR, learning_rate: 1.e-3}
train_dataset: {data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt}}
";
        let text = format!("{text}load_checkpoint: {}\n", folder.display());
        check_weights(&RunConfig::parse(&text, Path::new("hostile.yaml"), &[])?.plan)
    },
};

/// A model of images whose language model is in FP8: as it says its shape, and as a checkpoint leaves in its layout.
pub static wrapper: Kind = Kind {
    name: "wrapper",
    targets: &["like/config.json", "like/model.safetensors"],
    prepare: |folder| {
        for name in ["like", "trained"] {
            std::fs::create_dir_all(folder.join(name)).expect("a folder");
        }
        write_tensors(&folder.join("trained/model.safetensors"), &[(Q, &[32, 32]), (NORM, &[32])]);
        let [q, norm] = [Q, NORM].map(|name| name.replacen("model.", "model.language_model.", 1));
        let info = |name: &str, dtype, shape: &[usize]| TensorInfo {
            name: name.to_string(),
            dtype,
            shape: shape.to_vec(),
        };
        let infos = [
            info(&norm, Dtype::F64, &[32]),
            info(&format!("{q}_scale_inv"), Dtype::F32, &[2, 1]),
            info("model.visual.patches", Dtype::U8, &[3]),
            info(&q, Dtype::F8_E4M3, &[32, 32]),
        ];
        let path = folder.join("like/model.safetensors");
        let written = TensorFile::write(&path, &infos, Default::default(), |index, sink| {
            let bytes = infos[index].shape.iter().product::<usize>() * infos[index].dtype.bitsize() / 8;
            sink.put(&(0..bytes).map(|byte| (byte % 56) as u8).collect::<Vec<_>>())
        });
        written.unwrap_or_else(|error| panic!("{error}"));
        let config = serde_json::json!({
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "tie_word_embeddings": false,
            "vision_config": {"depth": 2},
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]},
            "text_config": {
                "model_type": "qwen2_5_vl_text", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 256, "rms_norm_eps": 1e-5,
                "max_position_embeddings": 256, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
            },
        });
        std::fs::write(folder.join("like/config.json"), config.to_string()).expect("a file");
    },
    read: |folder| {
        let like = folder.join("like");
        let text = format!(
            "
load_checkpoint: {}
runner_config: {{epochs: 1, batch_size: 1}}
optimizer: {{type: AdamW}}
lr_schedule: {{type: ConstantWarmUpLR, learning_rate: 1.e-3}}
train_dataset: {{data_loader: {{type: TextDataLoader, dataset_files: {TEXT}}}}}
",
            like.display()
        );
        check_weights(&RunConfig::parse(&text, Path::new("hostile.yaml"), &[])?.plan)?;
        let out = folder.join("out");
        let done = export(&folder.join("trained"), &like, &out, None).map(drop);
        let _ = std::fs::remove_dir_all(out);
        done
    },
};

pub static best_checkpoint: Kind = Kind {
    name: "best_checkpoint",
    targets: &["best.json"],
    prepare: |folder| {
        let noted = CheckpointFolder::new(folder, Keep::All).note_best(Best { step: 2, eval_loss: 2.5 });
        noted.unwrap_or_else(|error| panic!("{error}"));
    },
    read: |folder| CheckpointFolder::new(folder, Keep::All).chosen().map(drop),
};

pub static trainer_state: Kind = Kind {
    name: "trainer_state",
    targets: &["trainer_state.json"],
    prepare: |folder| {
        let state = TrainerState {
            format_version: FORMAT_VERSION,
            step: 20,
            global_step: 19,
            micro_step: 80,
            loss_scale: 65_536.0,
            scaler: None,
            data_fingerprint: 7,
            data_hash: Some(8),
            eval_data_hash: Some(9),
            best: Some(Best { step: 2, eval_loss: 2.5 }),
            evaluations_since: 1,
            total_steps: Some(3),
            decisions: [("seed".to_string(), 7.into()), ("optimizer.type".to_string(), "AdamW".into())]
                .into(),
        };
        state.save(&folder.join("trainer_state.json")).unwrap_or_else(|error| panic!("{error}"));
    },
    read: |folder| {
        let state = TrainerState::load(&folder.join("trainer_state.json"))?;
        state.check_matches(folder, &state, |_| None)
    },
};

pub static run_folder: Kind = Kind {
    name: "run_folder",
    targets: &["metrics.jsonl", "events.jsonl", "config.yaml"],
    prepare: |folder| {
        for name in ["config.yaml", "events.jsonl", "metrics.jsonl"] {
            copy(&format!("tests/data/runs/mill/{name}"), folder, name);
        }
    },
    read: |folder| {
        let files = RunFiles::open(folder)?;
        let has_steps = files.step().is_some();
        page(&[files], None);
        // As the command answers.
        if has_steps { Ok(()) } else { Err(Error::file(folder, "no step is in its metrics.jsonl")) }
    },
};

/// The event file below `folder`.
fn event_file_of(folder: &Path) -> PathBuf {
    let mut names = std::fs::read_dir(folder.join("rank_0")).expect("a folder");
    names.next().expect("an event file").expect("a name").path()
}

/// A file of TensorBoard, in which a resumed run goes on.
pub static event_file: Kind = Kind {
    name: "event_file",
    targets: &["rank_0/events.out.tfevents.0000000001.mill.gristmill"],
    prepare: |folder| {
        let sections = [("runner_config".to_string(), "epochs: 1\n".to_string())];
        let opened = TensorBoard::open(folder, "mill", None, Scalars::default(), &sections);
        drop(opened.unwrap_or_else(|error| panic!("{error}")));
        std::fs::rename(event_file_of(folder), folder.join(event_file.targets[0])).expect("a name");
    },
    read: |folder| {
        let path = event_file_of(folder);
        let bytes = std::fs::metadata(&path).expect("a file").len();
        TensorBoard::open(folder, "mill", Some(3), Scalars::default(), &[])?;
        // What is damaged is cut off.
        match std::fs::metadata(&path).expect("a file").len() == bytes {
            true => Ok(()),
            false => Err(Error::file(path, "was cut")),
        }
    },
};

pub static numpy: Kind = Kind {
    name: "numpy",
    targets: &["counts.npy"],
    prepare: |folder| {
        let written = npy::write(PathOrigin("--output_dir"), &folder.join("counts.npy"), &[0.5; 40]);
        written.unwrap_or_else(|error| panic!("{error}"));
    },
    read: |folder| npy::read(&folder.join("counts.npy")).map(drop),
};

pub static profile: Kind = Kind {
    name: "profile",
    targets: &["profile.jsonl"],
    prepare: |folder| {
        let head =
            serde_json::json!({"adapter": "llvmpipe", "capabilities": Capabilities::software(), "steps": 5});
        let launch = serde_json::json!({
            "program": "micro_batch", "path": "layers.0", "kernel": "rms_norm", "us": 7.5, "gap_us": 0.5,
        });
        std::fs::write(folder.join("profile.jsonl"), format!("{head}\n{launch}\n{launch}\n"))
            .expect("a file");
    },
    read: |folder| Profile::read(&folder.join("profile.jsonl")).map(drop),
};
