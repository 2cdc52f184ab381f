"""Recognises handwritten digits: trains a classifier once, then answers for every image."""

from runqy_python import load, run, task


@load
def train():
    """Train on the first images that scikit-learn brings; the others are for the tasks."""
    from sklearn.datasets import load_digits
    from sklearn.svm import SVC

    digits = load_digits()
    images, labels = digits.data[:1297], digits.target[:1297]
    return SVC(gamma=0.001).fit(images, labels)


@task
def recognise(payload, classifier):
    """`payload`: {"image": 64 grey values from 0 to 16}."""
    return {"digit": int(classifier.predict([payload["image"]])[0])}


if __name__ == "__main__":
    run()
