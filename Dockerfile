# jaxpose in a container; docs/install.md has the commands.
#   docker build --tag jaxpose .                                    for CPUs
#   docker build --tag jaxpose:cuda12 --build-arg EXTRA=cuda12 .    for NVIDIA GPUs: the host gives only the driver
FROM python:3.12-slim

# An extra of pyproject.toml, or none.
ARG EXTRA=""

# A folder of its own, so that the layer holds the installed package only.
COPY LICENSE README.md pyproject.toml setup.py /source/
COPY configs /source/configs
COPY launch /source/launch
COPY jaxpose /source/jaxpose
RUN pip install --no-cache-dir "/source${EXTRA:+[$EXTRA]}" \
    && rm -r /source \
    && useradd --create-home --uid 1000 jaxpose \
    && mkdir --mode 1777 /cache

# Compiled programs and decoded videos: mount a folder here to keep them. Any user of the host may run the container.
ENV JAXPOSE_CACHE=/cache HOME=/tmp
USER 1000
WORKDIR /data
ENTRYPOINT ["jaxpose"]
CMD ["--help"]
