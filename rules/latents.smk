"""Arrays from trained models: latents of whole sets, and probes for figures."""


rule extract_latents:
    input:
        model=trained["model"],
        config=trained["config"],
        dataset=list(prepared.values()),
    output:
        latents=layout.latents(files.run()),
    log:
        files.log("extract_latents/{paper}-{variant}-seed-{seed}-{dataset}-{split}"),
    benchmark:
        files.benchmark("extract_latents/{paper}-{variant}-seed-{seed}-{dataset}-{split}")
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
        "../workflow/scripts/stage.py"


rule read_probe:
    input:
        model=trained["model"],
        config=trained["config"],
        dataset=plan.test_set,
    output:
        probe=layout.probe(files.run()),
    log:
        files.log("read_probe/{paper}-{variant}-seed-{seed}-{probe}"),
    benchmark:
        files.benchmark("read_probe/{paper}-{variant}-seed-{seed}-{probe}")
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
        "../workflow/scripts/stage.py"
