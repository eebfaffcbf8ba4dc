"""What the trained models make of the data: latents of whole sets, and probes for figures."""


rule extract_latents:
    input:
        model="<run>/model.safetensors",
        config="<run>/config.json",
        dataset=expand("<dataset>/{file}", file=DATASET_FILES, allow_missing=True),
    output:
        latents="<run>/latents/{dataset}-{split}.npz",
    log:
        "<logs>/extract_latents/{paper}-{variant}-seed-{seed}-{dataset}-{split}.log",
    benchmark:
        "<benchmarks>/extract_latents/{paper}-{variant}-seed-{seed}-{dataset}-{split}.tsv"
    conda:
        "../envs/recaps.yaml"
    resources:
        gpu=plan.gpus,
        mem_mb=growing(16000),
        runtime=growing(60),
    params:
        code=plan.family_code("extract_latents"),
        limit=plan.limit,
    message:
        "Latents of {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed}, on {wildcards.dataset}/{wildcards.split}"
    script:
        "../workflow/scripts/extract_latents.py"


rule read_probe:
    input:
        model="<run>/model.safetensors",
        config="<run>/config.json",
        dataset=plan.test_set,
    output:
        probe="<run>/probes/{probe}.npz",
    log:
        "<logs>/read_probe/{paper}-{variant}-seed-{seed}-{probe}.log",
    benchmark:
        "<benchmarks>/read_probe/{paper}-{variant}-seed-{seed}-{probe}.tsv"
    conda:
        "../envs/recaps.yaml"
    resources:
        gpu=plan.gpus,
        mem_mb=growing(8000),
        runtime=growing(30),
    params:
        code=plan.probe_code,
        images=plan.probe_images,
    message:
        "Probe {wildcards.probe} of {wildcards.paper}/{wildcards.variant}, seed {wildcards.seed}"
    script:
        "../workflow/scripts/read_probe.py"
